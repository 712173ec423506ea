"""What known_hosts says about a key, for every form of line that OpenSSH writes."""

import itertools
import subprocess
from concurrent.futures import ThreadPoolExecutor

import asyncssh
import pytest

from hetero_tui.transport import host_keys
from hetero_tui.transport.host_keys import Target, Verdict

KEY = asyncssh.generate_private_key("ssh-ed25519").convert_to_public()
OTHER = asyncssh.generate_private_key("ssh-ed25519").convert_to_public()
ECDSA = asyncssh.generate_private_key("ecdsa-sha2-nistp256").convert_to_public()
TARGET = Target("mercer.local", 2222, "10.0.0.7")


def line(name: str, key: asyncssh.SSHKey, marker: str = "") -> str:
    return f"{marker + ' ' if marker else ''}{name} {key.export_public_key().decode().strip()}\n"


def verdict(tmp_path, text: str, key: asyncssh.SSHKey = KEY, target: Target = TARGET) -> tuple[Verdict, int | None]:
    (tmp_path / "known_hosts").write_text(text)
    decided, entry = host_keys.decide(host_keys.find([tmp_path / "missing", tmp_path / "known_hosts"], target), key)
    return decided, entry.line if entry else None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", (Verdict.UNKNOWN, None)),
        (line("elsewhere", KEY), (Verdict.UNKNOWN, None)),
        (line("[mercer.local]:2222", KEY), (Verdict.KNOWN, 1)),
        ("# a comment\n\n" + line("[mercer.local]:2222,[10.0.0.9]:2222", KEY), (Verdict.KNOWN, 3)),
        ("a broken line\n" + line("[mercer.local]:2222", KEY), (Verdict.KNOWN, 2)),
        (line("[mercer.local]:2222", OTHER), (Verdict.CHANGED, 1)),
        (line("[mercer.local]:2222", ECDSA), (Verdict.CHANGED, 1)),
        (line("[mercer.local]:2222", OTHER) + line("[mercer.local]:2222", KEY), (Verdict.KNOWN, 2)),
        (line("[mercer.local]:2222", ECDSA) + line("[mercer.local]:2222", OTHER), (Verdict.CHANGED, 2)),
        (line("mercer.local", KEY), (Verdict.KNOWN, 1)),
        (line("mercer.local", OTHER), (Verdict.UNKNOWN, None)),
        (line("[10.0.0.7]:2222", KEY), (Verdict.KNOWN, 1)),
        (line("[10.0.0.7]:2222", OTHER), (Verdict.UNKNOWN, None)),
        (line("[*.local]:2222", OTHER), (Verdict.CHANGED, 1)),
        (line("[mercer.local]:2222", KEY) + line("*", KEY, "@revoked"), (Verdict.REVOKED, 2)),
        (line("*", KEY, "@cert-authority"), (Verdict.UNKNOWN, None)),
    ],
    ids=itertools.count(),  # the keys in the texts are others in each process
)
def test_a_line_decides_as_openssh_would(tmp_path, text, expected):
    assert verdict(tmp_path, text) == expected


def test_hashed_lines_are_found(tmp_path):
    (tmp_path / "known_hosts").write_text(line("[mercer.local]:2222", KEY))
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", tmp_path / "known_hosts"], check=True, capture_output=True)
    text = (tmp_path / "known_hosts").read_text()
    assert "mercer" not in text
    assert verdict(tmp_path, text) == (Verdict.KNOWN, 1)
    assert verdict(tmp_path, text, key=OTHER) == (Verdict.CHANGED, 1)


def test_only_a_listed_and_not_revoked_authority_is_trusted(tmp_path):
    def trusted(text: str) -> bool:
        (tmp_path / "known_hosts").write_text(text)
        return host_keys.trusts_authority(host_keys.find([tmp_path / "known_hosts"], TARGET), KEY)

    listed = line("*", KEY, "@cert-authority")
    assert trusted(listed)
    assert not trusted(line("*", KEY))
    assert not trusted(line("elsewhere", KEY, "@cert-authority"))
    assert not trusted(listed + line("*", KEY, "@revoked"))


def test_accepted_keys_are_private_whole_lines_also_when_many_accept_at_once(tmp_path):
    path = tmp_path / "ssh" / "known_hosts"
    targets = [Target(f"host-{number}", 22) for number in range(20)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda target: host_keys.accept(path, target, KEY), targets * 2))
    assert sorted(path.read_text().splitlines(keepends=True)) == sorted(line(target.name, KEY) for target in targets)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_accepting_mends_a_last_line_without_newline(tmp_path):
    path = tmp_path / "known_hosts"
    path.write_text(line("a", OTHER).rstrip())
    host_keys.accept(path, TARGET, KEY)
    assert path.read_text() == line("a", OTHER) + line("[mercer.local]:2222", KEY)
