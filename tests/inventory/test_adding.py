"""Machines as users name them, and hosts taken out of an inventory whose comments all stay."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_tui.errors import InventoryError, UsageError
from hetero_tui.inventory.adding import free_name, parse_target
from hetero_tui.inventory.editing import without_host
from hetero_tui.inventory.file import change_host, host_fields, load, remove_host


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("mercer", {"address": "mercer"}),
        ("me@mercer.local:2222", {"address": "mercer.local", "user": "me", "port": 2222}),
        ("me@[fd00::7]:22", {"address": "fd00::7", "user": "me", "port": 22}),
        ("me@example.org@mercer", {"address": "mercer", "user": "me@example.org"}),  # as ssh reads it: a domain's login
        ("EXAMPLE\\me@mercer", {"address": "mercer", "user": "EXAMPLE\\me"}),
    ],
)
def test_a_target(text, fields):
    assert parse_target(text) == fields


@pytest.mark.parametrize(
    "text", ["", "a b", "me@", "@x", "x:", "x:70000", "x:0", "-oProxyCommand=x", "fd00::7", "a@b@", "me@x/", "a,b"]
)
def test_what_is_no_target(text):
    with pytest.raises(UsageError):
        parse_target(text)


def test_names_are_made_of_addresses_and_differ():
    assert free_name("Mercer.local", ()) == "mercer"
    assert free_name("mercer.example.org", ("mercer", "mercer-2")) == "mercer-3"
    assert free_name("192.168.1.12", ()) == "host-192-168-1-12"
    assert free_name("___", ()) == "host"


entries = st.sampled_from(
    [
        "{address: A}",
        "{address: A, port: 22}  # comment 1",
        "\n    address: A  # comment 2\n    # comment 3\n    role: server",
        '\n    address: "A"\n\n    python: "/a # b"',
        "{address: A,\n    port: 22}   # comment 4",
        "\n    address: A\n    devices:\n    - cpu\n    - cuda:0",
        "\n    user: >-\n      me\n    address: A\n    devices:  # comment 1\n    - cpu  # comment 2\n    # comment 3",
        "\n    devices: [cpu,  # comment 4\n      cuda:0]\n    address: A",
    ]
)
between = st.sampled_from(["", "  # comment 5\n", "\n", "# comment 6\n\n", "\t# comment 7\n".expandtabs()])


@given(st.lists(st.tuples(between, entries), min_size=1, max_size=5), between, st.data())
def test_a_host_that_is_taken_out_leaves_the_others_and_every_comment(tmp_path_factory, hosts, end, data):
    text = "cluster: {name: x}  # comment 8\nhosts:  # comment 9\n"
    for number, (before, entry) in enumerate(hosts):
        text += f"{before}  host-{number}: {entry.replace('A', f'10.0.0.{number + 1}')}\n"
    text += end
    path = tmp_path_factory.mktemp("inventory") / "inventory.yaml"
    path.write_text(text)
    before = load(path)
    name = f"host-{data.draw(st.integers(0, len(hosts) - 1))}"
    after = remove_host(path, name)
    assert after.hosts == tuple(host for host in before.hosts if host.name != name)
    for number in range(1, 10):
        assert path.read_text().count(f"# comment {number}") == text.count(f"# comment {number}"), path.read_text()


def test_a_host_of_a_flow_mapping():
    assert without_host("hosts: {a: {address: b}, c: {address: d}}  # x\n", "a") == "hosts: {c: {address: d}}  # x\n"
    assert without_host("hosts: {a: {address: b}, c: {address: d}}\n", "c") == "hosts: {a: {address: b}}\n"
    assert without_host("hosts: {a: {address: b}}\n", "a") == "hosts: {}\n"


def test_the_head_is_not_taken_out_and_nothing_changes(tmp_path):
    path = tmp_path / "inventory.yaml"
    path.write_text("cluster: {head: a}\nhosts:\n  a: {address: x}\n  b: {address: y}\n")
    before = path.read_text()
    for name in ("a", "nobody"):
        with pytest.raises(InventoryError):
            remove_host(path, name)
    assert path.read_text() == before


def test_what_a_host_is_taken_out_of_keeps_its_line_ends_and_the_comments_inside_the_host(tmp_path):
    path = tmp_path / "inventory.yaml"
    path.write_bytes(
        b"hosts:\r\n  a:  # one\r\n    address: x\r\n    proxy_jump:  # two\r\n  # three\r\n  b: {address: y}"
    )
    remove_host(path, "a")
    assert path.read_bytes() == b"hosts:\r\n  # one\r\n  # two\r\n  # three\r\n  b: {address: y}"
    assert without_host("hosts: {a: {address: x, # one\n port: 1}, b: {address: y}}\n", "a") == (
        "hosts: { # one\nb: {address: y}}\n"
    )


fields = st.fixed_dictionaries(
    {"address": st.sampled_from(["A.example", "fd00::7"])},
    optional={
        "port": st.integers(1, 65535),
        "user": st.sampled_from(["me", "yes", "x # y", "it's", "12"]),
        "python": st.just("/a b: c"),
        "devices": st.sampled_from([("cpu",), ("cuda:0", "cpu")]),
        "cpus": st.integers(1, 9),
        "role": st.sampled_from(["any", "server"]),
    },
)


@given(st.lists(st.tuples(between, entries), min_size=1, max_size=4), between, fields, st.booleans(), st.data())
def test_a_host_that_is_changed_has_these_fields_and_all_else_and_every_comment_stay(
    tmp_path_factory, hosts, end, fields, is_flow, data
):
    text = "cluster: {name: x}  # comment 8\nhosts:  # comment 9\n"
    for number, (before, entry) in enumerate(hosts):
        text += f"{before}  host-{number}: {entry.replace('A', f'10.0.0.{number + 1}')}\n"
    text += end
    if is_flow:
        text = "hosts: {host-0: {address: B, # comment 1\n port: 7}, host-1: {connection: local}} # comment 2\n"
        hosts = hosts[:1]
    path = tmp_path_factory.mktemp("inventory") / "inventory.yaml"
    path.write_text(text)
    before = load(path)
    name = f"host-{data.draw(st.integers(0, len(hosts) - 1))}"
    after = change_host(path, name, fields)
    assert [host for host in after.hosts if host.name != name] == [host for host in before.hosts if host.name != name]
    assert host_fields(path, name) == fields
    for number in range(1, 10):
        assert path.read_text().count(f"# comment {number}") == text.count(f"# comment {number}"), path.read_text()


def test_a_changed_host_stays_where_it_stands_as_it_is_written(tmp_path):
    path = tmp_path / "inventory.yaml"
    path.write_text(
        "defaults: {connection: local}\nhosts:\n  a:  # one\n  b: {connection: ssh, address: y, port: 7} # two\n"
    )
    change_host(path, "a", {"cpus": 2, "role": "server"})
    change_host(path, "b", {"address": "z", "connection": "ssh", "devices": ("cpu",)})
    assert path.read_text() == (
        "defaults: {connection: local}\nhosts:\n  a: {cpus: 2, role: server}  # one\n"
        "  b: {connection: ssh, address: z, devices: [cpu]} # two\n"
    )
    path.write_text("hosts: {a: {address: x}, b: {address: y,\n port: # one\n}}\n")
    change_host(path, "b", {"address": "y", "cpus": 3})
    assert path.read_text() == "hosts: {a: {address: x}, b: {address: y,\n port: , cpus: 3 # one\n}}\n"
    with pytest.raises(InventoryError, match=r"inventory.yaml has no host \w+:\n  hosts are: a, b"):
        change_host(path, "c", {"address": "z"})
    with pytest.raises(InventoryError, match=r"hosts\.b\.cpus"):
        change_host(path, "b", {"address": "z", "cpus": "two"})
