"""The inventory: what a good file means, and that a bad one says everything that is wrong with it at once."""

import os
import re
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_tui.errors import InventoryError
from hetero_tui.inventory.document import LARGEST
from hetero_tui.inventory.file import add_host, load, remove_host

ROOT = Path(__file__).parents[2]


@pytest.fixture
def read(tmp_path):
    def read(text: str | bytes):
        path = tmp_path / "inventory.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load(path)

    return read


@pytest.fixture
def mistakes(read):
    def mistakes(text: str | bytes) -> list[str]:
        with pytest.raises(InventoryError) as caught:
            read(text)
        assert caught.value.exit_code == 2
        return list(caught.value.mistakes)

    return mistakes


def test_the_shipped_file_is_this_computer_and_its_examples_are_valid(tmp_path):
    shipped = (ROOT / "inventory.yaml").read_text()
    inventory = load(ROOT / "inventory.yaml")
    assert [(host.name, host.connection) for host in inventory.hosts] == [("laptop", "local")]
    examples = re.sub(r"^( *)# ?( *[a-z_]+:)", r"\1\2", shipped, flags=re.MULTILINE)
    (tmp_path / "inventory.yaml").write_text(examples)
    names = [host.name for host in load(tmp_path / "inventory.yaml").hosts]
    assert names == ["laptop", "desk", "attic", "studio", "nas", "rack", "lab"]


def test_defaults_apply_and_a_hosts_own_keys_win(read):
    inventory = read(
        "cluster: {name: rc-lab, head: mercer}\n"
        "defaults: {user: me, port: 2222, cpus: 4}\n"
        "hosts:\n"
        "  mercer: {address: mercer.local}\n"
        "  crosby: {address: 192.168.1.12, user: lab, port: 22, devices: [cpu, 'cuda:1']}\n"
        "  laptop: {connection: local}\n"
    )
    mercer, crosby, laptop = inventory.hosts
    assert (inventory.cluster, inventory.head, inventory.security) == ("rc-lab", "mercer", "token")
    assert (mercer.user, mercer.port, mercer.cpus) == ("me", 2222, 4)
    assert (crosby.user, crosby.port, crosby.cpus, crosby.devices) == ("lab", 22, 4, ("cpu", "cuda:1"))
    assert (laptop.user, laptop.port, laptop.cpus) == (None, None, 4)


def test_files_are_relative_to_the_inventory_and_a_tilde_is_home(read, tmp_path):
    inventory = read("hosts: {a: {address: a, identity_file: keys/lab, known_hosts: ~/known}}")
    assert inventory.hosts[0].identity_file == str(tmp_path / "keys" / "lab")
    assert inventory.hosts[0].known_hosts == str(Path.home() / "known")


@pytest.mark.parametrize("text", ["hosts: {}\n", "hosts:\n", "cluster: {name: a}\n", "{}\n", "\ufeffhosts: {}\n"])
def test_a_file_without_hosts_is_an_empty_inventory(read, text):
    assert read(text).hosts == ()


def test_every_mistake_is_told_at_once_in_the_order_of_lines(mistakes):
    found = mistakes(
        "clustr: {}\n"
        "cluster: {name: Bad_Name, head: mercr, security: ssl}\n"
        "defaults: {user: 12, max_bach: 1}\n"
        "hosts:\n"
        "  mercer: {address: mercer.local, port: 70000}\n"
        "  nas: {adress: nas.local, role: sever, devices: cpu}\n"
    )
    assert found == [
        "line 1: clustr: unknown key; did you mean 'cluster'?",
        "line 2: cluster.name: a name has lower-case letters, digits and inner dashes, at most 40 of them",
        "line 2: cluster.security: 'ssl' is not allowed; it can be 'token' or 'tls'",
        "line 2: cluster.head: 'mercr' is not a host; did you mean 'mercer'?",
        "line 3: defaults.max_bach: unknown key; did you mean 'max_batch'?",
        "line 3: defaults.user: should be text; put it in quotes, not 12",
        "line 5: hosts.mercer.port: 70000 is out of range; it should be at most 65535",
        "line 6: hosts.nas.adress: unknown key; did you mean 'address'?",
        "line 6: hosts.nas.devices: should be a list, such as [cpu], not 'cpu'",
        "line 6: hosts.nas.role: 'sever' is not allowed; it can be 'any', 'worker' or 'server'",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hosts: {a: {}}", "line 1: hosts.a: has no address; add `address: ...`, or `connection: local`"),
        ("hosts:\n  a:\n", "line 2: hosts.a: has no address"),
        ("hosts: {a: {address: x}, a: {address: y}}", "line 1: hosts.a: is there twice, first in line 1"),
        ("hosts: {a: {address: x, address: y}}", "line 1: hosts.a.address: is there twice, first in line 1"),
        (
            "hosts:\n  a: {address: x}\n  b: {address: X, port: 22}",
            "line 3: hosts.b: same address and port as hosts.a (line 2)",
        ),
        (
            "hosts: {a: {connection: local}, b: {connection: local}}",
            "line 1: hosts.b: this computer, like hosts.a (line 1)",
        ),
        ("hosts: {a: {connection: local, port: 22}}", "line 1: hosts.a.port: has no meaning with `connection: local`"),
        ("hosts: {a: {address: x, proxy_jump: a}}", "line 1: hosts.a.proxy_jump: leads through the host itself"),
        ("hosts: {a: {address: x, proxy_jump: b}, b: {connection: local}}", "'b' is this computer; leave"),
        ("hosts: {a: {address: x, proxy_jump: 'a b'}}", "it should be a host of this inventory, or [user@]host[:port]"),
        ("hosts: {a: {address: me@x}}", "line 1: hosts.a.address: the address holds a user"),
        ("hosts: {a: {address: 'ssh://x'}}", "line 1: hosts.a.address: an address is no URL"),
        ("hosts: {a: {address: '[fd00::1]'}}", "line 1: hosts.a.address: write an IPv6 address without brackets"),
        ("hosts: {a: {address: 'x:22'}}", "line 1: hosts.a.address: the address holds a port"),
        ("hosts: {a: {address: -oProxyCommand=x}}", "line 1: hosts.a.address: it may not start with a dash"),
        ("hosts: {a: {address: 'x y'}}", "line 1: hosts.a.address: an address has no blanks"),
        ("hosts: {a: {address: ''}}", "line 1: hosts.a.address: it is empty"),
        ("hosts: {a: {address: 1.5}}", "line 1: hosts.a.address: should be text; put it in quotes, not 1.5"),
        ("hosts: {a: {address: x, port: true}}", "line 1: hosts.a.port: should be a whole number, not True"),
        ("hosts: {a: {address: x, devices: []}}", "line 1: hosts.a.devices: the list is empty"),
        ("hosts: {a: {address: x, devices: [gpu]}}", "line 1: hosts.a.devices: 'gpu' is not a device"),
        ("hosts: {a: {address: x, devices: [cpu, cpu]}}", "line 1: hosts.a.devices: a device is named twice"),
        ("hosts: {My_Box: {address: x}}", "line 1: hosts.My_Box: a name has lower-case letters"),
        ("hosts: {a: [1]}", "line 1: hosts.a: should be a mapping of `key: value`"),
        ("hosts: [a]", "line 1: hosts: should be a mapping of `key: value`"),
        ("cluster: {head: x}", "line 1: cluster.head: 'x' is not a host; hosts are: none"),
        ("- a\n- b", "line 1: should be a mapping of `key: value`"),
        ("hosts:\n\ta: {}", "line 2, column 1: a tab where YAML allows spaces only; indent with spaces"),
        ("hosts: {a: {address: x}", "line 1, column 8: not YAML: the quotation mark or bracket that opens here is"),
        ("hosts:\n  a: {address: 'x}\n  b: {address: y}\n", "line 2, column 16: not YAML: the quotation mark or"),
        ("hosts:\n  a: !!python/object:os.system {address: x}\n", "line 2: hosts.a: tags (!!python/object:os.system)"),
        ("hosts: !ours {a: {address: x}}", "line 1: hosts: tags (!ours) are not supported"),
        ("hosts: {a: mercer.local}", "hosts.a: should be a mapping of `key: value`, such as {address: mercer.local}"),
        ("hosts: {a: {address: x\u200b}}", "line 1: hosts.a.address: it has blanks around it, or characters in it"),
        ("hosts: {a: {address: \u201cx\u201d}}", "line 1: hosts.a.address: an address has no '\u201c'"),
        ("hosts: {a: {address: $HOST}}", "line 1: hosts.a.address: an address has no '$'"),
        ("hosts: {a: {address: 'a,b'}}", "line 1: hosts.a.address: an address has no ','"),
        ("hosts: {}\n---\nhosts: {}", "line 2, column 1: a second document starts here"),
        ("hosts: {a: {address: x, devices: !!python/object/apply:os.system [cpu]}}", "line 1: hosts.a.devices: tags"),
        ("? [a]\n: 1", "line 1: a key must be a word"),
        ("", "the file is empty; `hetero-tui add"),
        ("# only a comment\n", "the file is empty; `hetero-tui add"),
        (b"hosts: {}\n# \xff", "line 2: not UTF-8 text; save the file as UTF-8"),
        ("hosts: {}".encode("utf-16"), "line 1: not UTF-8 text"),
        ("hosts: {a: {address: \x07}}", "line 1: not YAML: the character U+0007 is not allowed"),
        ("hosts: {}\n# \u2028", "line 2: the character U+2028 is not allowed"),
        ("[" * 20000, "line 1: not an inventory: nested too deeply"),
        ("#" * (LARGEST + 1), "it is larger than 256 KiB"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_mistake_is_told_with_its_line_and_key(mistakes, text, expected):
    found = mistakes(text)
    assert len(found) == 1
    assert expected in found[0]


def test_a_circle_of_jumps_is_told_at_each_of_its_hosts(mistakes):
    assert mistakes("hosts:\n  a: {address: x, proxy_jump: b}\n  b: {address: y, proxy_jump: a}\n") == [
        "line 2: hosts.a.proxy_jump: goes round in a circle: a -> b -> a",
        "line 3: hosts.b.proxy_jump: goes round in a circle: b -> a -> b",
    ]


def test_aliases_that_would_multiply_are_refused_and_never_expanded(mistakes):
    bomb = "a: &a [x, x]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [*{chr(97 + n)}, *{chr(97 + n)}, *{chr(97 + n)}]\n" for n in range(20)
    )
    began = time.monotonic()
    assert mistakes(bomb) == ["line 2: aliases (*a) are not supported; use `defaults` for shared keys"]
    assert time.monotonic() - began < 30, "2**20 words would take minutes"


def test_a_jump_may_be_a_host_that_the_inventory_does_not_name(read):
    inventory = read(
        "hosts: {a: {address: x, proxy_jump: 'me@gate.example.org:2222'}, b: {address: y, proxy_jump: '[::1]'}}"
    )
    assert inventory.hosts[0].proxy_jump == "me@gate.example.org:2222"


def test_a_missing_file_says_what_to_write(tmp_path):
    said = (
        r"inventory.yaml can't be read:\n  there is no such file; `hetero-tui add me@.* `hetero-tui demo` needs no file"
    )
    with pytest.raises(InventoryError, match=said):
        load(tmp_path / "inventory.yaml")


def test_a_folder_is_said_to_be_one(tmp_path):
    with pytest.raises(InventoryError, match="it is a folder"):
        load(tmp_path)


def test_an_unreadable_file_is_said_to_be_one():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "inventory.yaml").touch(mode=0)
        with somebody_else(), pytest.raises(InventoryError, match="can't be read:\n  Permission denied"):
            load(folder / "inventory.yaml")


def test_a_pipe_in_a_files_place_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "inventory.yaml")
    with pytest.raises(InventoryError, match="no regular file"):
        load(tmp_path / "inventory.yaml")


def test_a_file_that_cannot_be_written_is_said_to_be_one_and_stays_as_it_is(tmp_path):
    with pytest.raises(InventoryError, match="can't be written:\n  No such file or directory"):
        add_host(tmp_path / "none/inventory.yaml", "b", {"address": "y"})
    with tempfile.TemporaryDirectory() as name:
        folder, file = Path(name), Path(name) / "inventory.yaml"
        file.write_text("hosts: {a: {address: x}}\n")
        for mode_of_folder, mode in ((0o755, 0o666), (0o777, 0o444)):
            folder.chmod(mode_of_folder)
            file.chmod(mode)
            with somebody_else(), pytest.raises(InventoryError, match="can't be written:\n  "):
                add_host(file, "b", {"address": "y"})
            with somebody_else(), pytest.raises(InventoryError, match="can't be written:\n  "):
                remove_host(file, "a")
        assert file.read_text() == "hosts: {a: {address: x}}\n"


@contextmanager
def somebody_else():
    """Another user than root, who reads everything, for as long as the block lasts."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(st.binary(max_size=200), st.text("hostaders:{}[]-?&*!|>'\"%@` \n\t,#1.x", max_size=120).map(str.encode))
)
def test_no_file_whatever_is_in_it_raises_anything_but_the_one_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("any") / "inventory.yaml"
    path.write_bytes(data)
    try:
        load(path)
    except InventoryError as error:
        told = error.mistakes
        assert told


def test_adding_a_host_keeps_comments_order_and_mode(tmp_path):
    path = tmp_path / "inventory.yaml"
    path.write_text("# mine\nhosts:\n  a: {address: x}  # the first\n\n# the end\n")
    path.chmod(0o600)
    inventory = add_host(path, "b", {"address": "10.0.0.2", "port": 2222})
    assert [host.name for host in inventory.hosts] == ["a", "b"]
    text = path.read_text()
    assert text.startswith("# mine\nhosts:\n  a: {address: x}  # the first\n")
    assert "# the end" in text
    assert "  b: {address: 10.0.0.2, port: 2222}" in text
    assert path.stat().st_mode & 0o777 == 0o600
    assert load(path) == inventory


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, "hosts:\n  b: +\n"),
        ("# mine", "# mine\nhosts:\n  b: +\n"),
        ("hosts: {}  # mine\n", "hosts:  # mine\n  b: +\n"),
        ("hosts:  # mine\n  # more\n", "hosts:  # mine\n  b: +\n  # more\n"),
        ("cluster: {name: x}\n", "cluster: {name: x}\nhosts:\n  b: +\n"),
        ("{cluster: {name: x}}\n", "{cluster: {name: x}, hosts: {b: +}}\n"),
        ("hosts: {a: {address: y}}  # mine\n", "hosts: {a: {address: y}, b: +}  # mine\n"),
        (
            "---\nhosts:\n    a: &a {address: y, # mine\n        port: 1}\n...\n",
            "---\nhosts:\n    a: &a {address: y, # mine\n        port: 1}\n    b: +\n...\n",
        ),
        (
            "hosts:\n  a:\n    address: y\n    devices:\n    - cpu  # mine\n    # of a\n# end\n",
            "hosts:\n  a:\n    address: y\n    devices:\n    - cpu  # mine\n    # of a\n  b: +\n# end\n",
        ),
        (
            "\ufeffhosts:\r\n  a:\r\n    address: y # mine\r\n# end",
            "\ufeffhosts:\r\n  a:\r\n    address: y # mine\r\n  b: +\r\n# end",
        ),
    ],
)
def test_a_host_can_be_added_to_any_valid_file_or_to_none_and_nothing_else_changes(tmp_path, before, after):
    path = tmp_path / "inventory.yaml"
    if before is not None:
        path.write_bytes(before.encode())
    add_host(path, "b", {"address": "z"})
    assert path.read_bytes().decode() == after.replace("+", "{address: z}")
    assert load(path).host("b").address == "z"


def test_a_refused_host_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "inventory.yaml"
    path.write_text("hosts: {a: {address: x}}\n")
    for name, fields in (
        ("a", {"address": "y"}),
        ("b", {"address": "x"}),
        ("B!", {"address": "z"}),
        ("c", {"adress": "z"}),
    ):
        with pytest.raises(InventoryError):
            add_host(path, name, fields)
    assert path.read_text() == "hosts: {a: {address: x}}\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["inventory.yaml"]
