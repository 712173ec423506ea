"""What a user sees when a host can't be reached, refuses, or shows a key: one precise error each, and no traceback."""

import asyncio
import errno
import os
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hetero_tui import deadlines
from hetero_tui.errors import AuthenticationFailed, HostError, HostKeyChanged, HostKeyUnknown, Unreachable
from hetero_tui.inventory import Host
from hetero_tui.transport import ssh

DEAD = Host(name="dead", address="127.0.0.1", user="nobody")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


async def test_a_known_key_and_a_key_file_are_enough(server, connect):
    transport = connect(server.host)
    await transport.connect()
    assert transport.address == server.host.address


async def test_of_a_name_with_several_addresses_the_one_that_answers_is_used(openssh, connect, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as gone:
        closed = gone.getsockname()
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", to) for to in (closed, ("127.0.0.1", openssh.host.port))]

    async def getaddrinfo(*_: object, **__: object) -> list[tuple[object, ...]]:
        return found

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    transport = connect(openssh.host.model_copy(update={"address": "both.example"}))
    assert (await transport.run(["true"], step="try", deadline=30)).exit_status == 0
    assert transport.address == "127.0.0.1"


async def test_an_unknown_host_shows_the_fingerprint_that_openssh_prints(openssh, connect, tmp_path):
    host = openssh.host.model_copy(update={"known_hosts": str(tmp_path / "new" / "known_hosts")})
    with pytest.raises(HostKeyUnknown) as caught:
        await connect(host).connect()
    printed = subprocess.run(
        ["ssh-keygen", "-lf", tmp_path / "host_key.pub"], capture_output=True, text=True, check=True
    )
    assert caught.value.fingerprint == printed.stdout.split()[1]
    assert caught.value.fingerprint in str(caught.value)
    assert not (tmp_path / "new").exists()


async def test_the_shown_key_can_be_accepted_and_is_then_known_to_openssh_too(server, connect, tmp_path):
    file = tmp_path / "new" / "known_hosts"
    transport = connect(server.changed(known_hosts=str(file)))
    assert not transport.accept_offered_key()
    with pytest.raises(HostKeyUnknown) as shown:
        await transport.connect()
    assert not transport.accept_offered_key("SHA256:of-another-key"), "the user saw that one"
    assert not file.exists()
    assert transport.accept_offered_key(shown.value.fingerprint)
    await transport.connect()
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    name = f"[{server.host.address}]:{server.host.port}"
    subprocess.run(["ssh-keygen", "-F", name, "-f", file], check=True, stdout=subprocess.DEVNULL)


async def test_accepting_new_host_keys_never_accepts_a_changed_one(server, connect, tmp_path):
    new = tmp_path / "accepted"
    await connect(server.changed(known_hosts=str(new)), accept=True).connect()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    other = " ".join((tmp_path / "other.pub").read_text().split()[:2])
    name = f"[{server.host.address}]:{server.host.port}"
    new.write_text(f"# mine\n{name} {other}\n")
    with pytest.raises(HostKeyChanged, match=rf"line 2 of {new}.*ssh-keygen -f {new} -R"):
        await connect(server.changed(known_hosts=str(new)), accept=True).connect()
    assert new.read_text() == f"# mine\n{name} {other}\n"


async def test_a_host_known_by_one_kind_of_key_is_not_unknown_because_it_has_others(openssh, connect, tmp_path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", tmp_path / "ecdsa"], check=True)
    await openssh.configure(f"HostKey {tmp_path}/ecdsa")
    for kind in ("ecdsa", "host_key"):
        public = " ".join((tmp_path / f"{kind}.pub").read_text().split()[:2])
        (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{openssh.port} {public}\n")
        await connect(openssh.host).connect()


async def test_a_certificate_of_a_trusted_authority_makes_a_host_known(openssh, connect, tmp_path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "ca"], check=True)
    sign = ["ssh-keygen", "-q", "-s", tmp_path / "ca", "-I", "host", "-h", "-n", "127.0.0.1", tmp_path / "host_key.pub"]
    subprocess.run(sign, check=True)
    await openssh.configure(f"HostCertificate {tmp_path}/host_key-cert.pub")
    authority = " ".join((tmp_path / "ca.pub").read_text().split()[:2])
    (tmp_path / "known_hosts").write_text(f"@cert-authority * {authority}\n")
    await connect(openssh.host).connect()


async def test_a_wrong_user_is_named_with_the_key_that_was_offered(server, connect):
    with pytest.raises(AuthenticationFailed, match=r"'nosuchuser'.*client_key") as caught:
        await connect(server.changed(user="nosuchuser")).connect()
    host = server.host
    assert caught.value.hint.endswith(f"`ssh-copy-id -p {host.port} nosuchuser@{host.address}`")


async def test_a_user_without_any_key_is_told_to_make_one(openssh, connect, tmp_path, monkeypatch):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    own = openssh.host.model_copy(update={"identity_file": None})
    with pytest.raises(AuthenticationFailed, match="offered: no key") as caught:
        await connect(own).connect()
    assert "ssh-keygen -t ed25519" in caught.value.hint


async def test_a_key_behind_a_passphrase_leads_to_ssh_add(server, connect, tmp_path, monkeypatch):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", tmp_path / "locked"], check=True)
    with pytest.raises(AuthenticationFailed, match=r"passphrase: run ssh-add .*locked") as caught:
        await connect(server.changed(identity_file=str(tmp_path / "locked"))).connect()
    assert f"run `ssh-add {tmp_path}/locked`" in caught.value.hint


@pytest.fixture
async def authority(openssh, tmp_path):
    """A server that lets in only who shows a certificate of this authority, which the client's key has beside it."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "ca"], check=True)
    key = tmp_path / "client_key.pub"
    subprocess.run(["ssh-keygen", "-q", "-s", tmp_path / "ca", "-I", "me", "-n", openssh.host.user, key], check=True)
    await openssh.configure(f"AuthorizedKeysFile none\nTrustedUserCAKeys {tmp_path}/ca.pub")


async def test_a_key_file_is_offered_with_its_certificate(authority, openssh, connect, tmp_path):
    await connect(openssh.host).connect()
    (tmp_path / "client_key-cert.pub").unlink()
    with pytest.raises(AuthenticationFailed):
        await connect(openssh.host).connect()


@asynccontextmanager
async def agent_with(socket_path: Path, key: Path) -> AsyncIterator[None]:
    """An SSH agent that has the key."""
    if shutil.which("ssh-agent") is None:
        pytest.skip("no ssh-agent is installed here")
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", socket_path], stdout=subprocess.DEVNULL)
    try:
        async with asyncio.timeout(30):
            while not socket_path.exists():
                await asyncio.sleep(0.02)
        subprocess.run(["ssh-add", "-q", key], check=True, env={**os.environ, "SSH_AUTH_SOCK": str(socket_path)})
        yield
    finally:
        agent.terminate()
        agent.wait()


async def test_a_key_behind_a_passphrase_works_through_the_agent(openssh, connect, tmp_path, monkeypatch, short_folder):
    monkeypatch.setenv("SSH_AUTH_SOCK", str(short_folder / "agent"))
    async with agent_with(short_folder / "agent", tmp_path / "client_key"):
        lock = ["ssh-keygen", "-q", "-p", "-N", "secret", "-f", tmp_path / "client_key"]
        subprocess.run(lock, check=True, stdout=subprocess.DEVNULL)
        await connect(openssh.host).connect()


@pytest.mark.parametrize(
    ("content", "words"), [(None, "can't be read: No such file"), ("ssh-ed25519 AAAA", "is not a private key")]
)
async def test_an_identity_file_that_is_none_is_said_so(server, connect, tmp_path, content, words):
    if content is not None:
        (tmp_path / "key").write_text(content)
    with pytest.raises(AuthenticationFailed, match=words):
        await connect(server.changed(identity_file=str(tmp_path / "key"))).connect()


async def test_a_closed_port_refuses_at_once(connect):
    began = time.monotonic()
    with pytest.raises(Unreachable, match=r"dead: connect: 127.0.0.1 port \d+ refused .* -> start its SSH server"):
        await connect(DEAD.model_copy(update={"port": free_port()})).connect()
    assert time.monotonic() - began < deadlines.CONNECT / 2


async def test_a_name_that_does_not_resolve_is_said_so(connect):
    with pytest.raises(Unreachable, match=r"name of no-such-host.invalid can't be resolved"):
        await connect(DEAD.model_copy(update={"address": "no-such-host.invalid"})).connect()
    with pytest.raises(Unreachable) as caught:
        await connect(DEAD.model_copy(update={"proxy_jump": "no-such-host.invalid"})).connect()
    assert "check `proxy_jump`" in caught.value.hint


async def test_a_silent_server_is_given_up_at_the_deadline(connect):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        transport = connect(DEAD.model_copy(update={"port": silent.getsockname()[1]}))
        object.__setattr__(transport._dialler, "deadline", 1.0)
        began = time.monotonic()
        with pytest.raises(Unreachable, match=r"accepted the connection but completed no SSH login within 1 s"):
            await transport.connect()
        assert 0.9 < time.monotonic() - began < deadlines.CONNECT / 2


async def test_what_is_not_ssh_is_said_so(connect):
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 100)
        writer.close()

    listener = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with listener:
        with pytest.raises(Unreachable, match=r"is not SSH|closed the connection during login"):
            await connect(DEAD.model_copy(update={"port": listener.sockets[0].getsockname()[1]})).connect()


async def test_a_connection_cut_midway_is_an_error_and_the_next_use_connects_again(server, connect):
    transport = connect(server.host)
    async with transport.stream(["sh", "-c", "echo a; sleep 60"], step="follow", silence=60) as lines:
        assert (await anext(lines)).raw == "a"
        await server.stop()
        with pytest.raises(Unreachable, match=r"real: follow: .*(lost|closed)"):
            await anext(lines)
    with pytest.raises(Unreachable, match="refused the connection"):
        await transport.connect()
    await server.start()
    done = await transport.run(["echo", "back"], step="try", deadline=30)
    assert done.stdout.raw == "back\n"


async def test_callers_at_the_same_time_share_one_attempt(server, connect):
    transport = connect(server.host)
    await asyncio.gather(*(transport.connect() for _ in range(8)))
    first = transport._current
    await transport.connect()
    assert transport._current is first


async def test_one_callers_deadline_does_not_end_the_attempt_of_the_others(server, connect):
    transport = connect(server.host)
    with pytest.raises(HostError, match="no connection within"):
        await transport.run(["true"], step="try", deadline=0.0001)
    await transport.connect()


async def test_a_closed_transport_says_so_and_closing_twice_is_fine(server, connect):
    transport = connect(server.host)
    await transport.connect()
    await transport.close()
    await transport.close()
    with pytest.raises(Unreachable, match="closed for good"):
        await transport.connect()


async def test_pauses_between_attempts_double_up_to_ten_seconds():
    pauses = deadlines.reconnect_pauses()
    assert [next(pauses) for _ in range(7)] == [0.5, 1, 2, 4, 8, 10, 10]


async def test_ssh_config_names_user_port_key_and_known_hosts(server, connect, tmp_path):
    host = server.host
    config = tmp_path / "config"
    config.write_text(
        f"Host shed\n  HostName {host.address}\n  Port {host.port}\n  User {host.user}\n"
        f"  IdentityFile {host.identity_file}\n  UserKnownHostsFile {host.known_hosts}\n"
    )
    transport = connect(Host(name="shed", address="shed"), config=(config,))
    await transport.connect()
    assert transport.address == host.address
    with pytest.raises(AuthenticationFailed, match="nosuchuser"):  # the inventory's own field wins
        await connect(Host(name="shed", address="shed", user="nosuchuser"), config=(config,)).connect()


@pytest.mark.parametrize(
    "line",
    [
        "HostName 127.0.0.1  # in the shed",
        "ConnectTimeout none",
        'Match exec "test %h = shed"',
        "CertificateFile {tmp_path}/missing-cert.pub",
        "PKCS11Provider /nonexistent.so",
    ],
)
async def test_an_ssh_config_that_openssh_can_use_is_used(common, connect, tmp_path, line):
    host = common.host
    (tmp_path / "my key").write_text(Path(host.identity_file).read_text())
    (tmp_path / "my key").chmod(0o600)
    config = tmp_path / "config"
    rest = f"Port {host.port}\nUser {host.user}\nUserKnownHostsFile {host.known_hosts} {tmp_path}/none\n"
    rest += f'IdentityFile {tmp_path}/missing\nIdentityFile "{tmp_path}/my key"\nHostName 127.0.0.1\n'
    config.write_text(f"Host shed\n{line.format(tmp_path=tmp_path)}\n{rest}")
    transport = connect(Host(name="shed", address="shed"), config=(config,))
    assert (await transport.run(["true"], step="try", deadline=20)).exit_status == 0
    assert transport.address == "127.0.0.1"


@pytest.mark.parametrize("named", ["SSH_AUTH_SOCK", "$OTHER_AGENT"])
async def test_an_agent_that_ssh_config_names_by_a_variable_is_asked(
    common, connect, tmp_path, monkeypatch, short_folder, named
):
    monkeypatch.setenv(named.strip("$"), str(short_folder / "agent"))
    async with agent_with(short_folder / "agent", common.folder / "client_key"):
        (tmp_path / "config").write_text(f"IdentityAgent {named}\nIdentityFile {tmp_path}/missing\n")
        await connect(common.host.model_copy(update={"identity_file": None}), config=(tmp_path / "config",)).connect()


async def test_a_broken_ssh_config_is_one_line_for_the_host(connect, tmp_path):
    (tmp_path / "config").write_text("Port many\n")
    with pytest.raises(HostError, match=r"~/.ssh/config can't be read: .*line 1"):
        await connect(DEAD, config=(tmp_path / "config",)).connect()


async def test_a_jump_leads_through_one_host_to_another(openssh, machines, connect):
    gate = openssh.host.model_copy(update={"name": "gate"})
    machine = machines.machine("half")
    far = Host(
        name="far",
        address=machine.address,
        port=machine.port,
        user=machines.user,
        identity_file=str(machines.identity_file),
        known_hosts=str(machines.known_hosts),
        proxy_jump="gate",
    )
    transport = connect(far, gate)
    done = await transport.run(["pwd"], step="try", deadline=60)
    assert done.stdout.raw.strip() == str(machine.home)
    assert transport.address is None
    closed = far.model_copy(update={"port": free_port()})
    with pytest.raises(Unreachable, match="the jump host can't connect to"):
        await connect(closed, gate).connect()
    stranger = gate.model_copy(update={"known_hosts": "/dev/null"})
    with pytest.raises(HostKeyUnknown, match=r"far: connect: .*\(on the way\) was never seen"):
        await connect(far, stranger).connect()


async def test_proxy_jump_and_proxy_command_of_ssh_config_are_followed(openssh, machines, connect, tmp_path):
    gate, machine = openssh.host, machines.machine("half")
    common = (
        f"Host gate\n  HostName 127.0.0.1\n  Port {gate.port}\n  User {gate.user}\n"
        f"  IdentityFile {gate.identity_file}\n"
        f"  UserKnownHostsFile {gate.known_hosts}\n"
        f"Host far\n  HostName {machine.address}\n  Port {machine.port}\n  User {machines.user}\n"
        f"  IdentityFile {machines.identity_file}\n  UserKnownHostsFile {machines.known_hosts}\n"
    )
    for number, way in enumerate(("ProxyJump gate", "ProxyCommand nc %h %p")):
        if way.startswith("ProxyCommand") and shutil.which("nc") is None:
            continue
        config = tmp_path / f"config{number}"
        config.write_text(f"{common}  {way}\n")
        done = await connect(Host(name="far", address="far"), config=(config,)).run(["pwd"], step="try", deadline=60)
        assert done.stdout.raw.strip() == str(machine.home)


async def test_what_a_login_shell_prints_does_not_harm_commands_files_or_round_trips(openssh, connect, tmp_path):
    await openssh.configure('ForceCommand printf "Welcome to rc-lab"; echo noise >&2; eval "$SSH_ORIGINAL_COMMAND"')
    transport = connect(openssh.host)
    done = await transport.run(["sh", "-c", "echo out; echo err >&2"], step="try", deadline=30)
    assert (done.stdout.raw, done.stderr.raw) == ("out\n", "noise\nerr\n")
    await transport.put(b"data", str(tmp_path / "file"), step="send", deadline=30)
    assert (tmp_path / "file").read_bytes() == b"data"
    assert await transport.round_trip() > 0


async def test_a_start_up_file_that_reads_stdin_gets_nothing_of_what_is_the_commands(openssh, connect, tmp_path):
    """It would run a Python program that we send as one of the shell's."""
    await openssh.configure('ForceCommand exec sh; eval "$SSH_ORIGINAL_COMMAND"')
    ran = tmp_path / "ran"
    with pytest.raises(HostError, match="its login shell ran no command within 2 s: a start-up file"):
        await connect(openssh.host).run(["sh"], step="try", deadline=2, stdin=f"echo > {ran}\n".encode())
    assert not ran.exists()


async def test_a_server_that_allows_one_session_on_each_connection_gets_more_of_these(
    openssh, connect, tmp_path, monkeypatch
):
    await openssh.configure("MaxSessions 1")
    transport = connect(openssh.host)
    async with (
        transport.stream(["cat"], step="follow", silence=60),
        transport.stream(["sh", "-c", "echo here; exec cat"], step="follow", silence=60) as lines,
    ):
        assert (await anext(lines)).raw == "here"
        assert await transport.round_trip() > 0
        for _ in range(3):  # a connection whose command has ended takes the next
            assert (await transport.run(["true"], step="try", deadline=30)).exit_status == 0
        monkeypatch.setattr(ssh, "_MOST_CONNECTIONS", 2)
        async with transport.stream(["cat"], step="follow", silence=60):
            with pytest.raises(HostError, match="MaxSessions"):
                await transport.run(["true"], step="try", deadline=30)


@pytest.mark.parametrize(
    ("forced", "says"),
    [
        ("/bin/false", "it said nothing and exited with 1"),
        ("echo exec: sh: not found >&2; exit 127", 'it said "exec: sh: not found" and exited with 127'),
        ("echo This gate is for backups only", 'it said "This gate is for backups only" and exited with 0'),
    ],
)
async def test_a_shell_that_runs_nothing_and_a_forced_command_are_said_so(openssh, connect, tmp_path, forced, says):
    await openssh.configure(f"ForceCommand {forced}")
    transport = connect(openssh.host)
    with pytest.raises(HostError, match=says) as caught:
        await transport.run(["true"], step="try", deadline=30)
    assert "ForceCommand" in caught.value.hint
    with pytest.raises(HostError, match=says):
        async with transport.stream(["true"], step="follow", silence=30) as lines:
            _ = [line async for line in lines]


@pytest.mark.parametrize(
    ("server", "status", "says"),
    [
        (
            "AuthenticationMethods publickey,password\nPasswordAuthentication yes",
            "auth_failed",
            "more than a key .*: a password",
        ),
        ("PubkeyAuthentication no\nPasswordAuthentication yes", "auth_failed", "more than a key .*: a password"),
        (
            "AuthorizedKeysFile none\nPasswordAuthentication yes",
            "auth_failed",
            r"refused the login of user .*client_key\)",
        ),
        ("AuthorizedKeysFile none\nMaxAuthTries 1", "auth_failed", r"ended the login of user .* after so many keys"),
    ],
)
async def test_what_a_server_wants_beside_a_key_is_said(openssh, connect, tmp_path, server, status, says):
    await openssh.configure(server)
    with pytest.raises(HostError, match=says) as caught:
        await connect(openssh.host).connect()
    assert caught.value.status == status


async def test_a_server_gets_no_more_logins_at_once_than_it_takes_by_default(openssh, connect, tmp_path):
    """As a jump host does, before more than ten hosts: OpenSSH drops the others."""
    await openssh.configure("MaxStartups 10:100:10")
    transports = [connect(openssh.host) for _ in range(25)]
    await asyncio.gather(*(transport.connect() for transport in transports))


async def test_known_hosts_that_can_not_be_read_are_not_taken_for_empty(common, connect, tmp_path, monkeypatch):
    """A key that has changed would pass for one that was never seen, and be accepted."""
    (tmp_path / "known").write_text("")
    read = Path.read_text

    def refuse(path: Path, *arguments: object, **named: object) -> str:
        if path.name == "known":
            raise OSError(errno.EMFILE, "Too many open files", str(path))
        return read(path, *arguments, **named)

    monkeypatch.setattr(Path, "read_text", refuse)
    host = common.host.model_copy(update={"known_hosts": str(tmp_path / "known")})
    with pytest.raises(HostError, match="Too many open files") as caught:
        await connect(host, accept=True).connect()
    assert not isinstance(caught.value, HostKeyUnknown)
    assert str(tmp_path / "known") in caught.value.cause
