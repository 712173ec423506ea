"""Rules that hold between hosts: names that must exist, machines that must differ, jumps that must lead somewhere."""

from __future__ import annotations

from collections.abc import Mapping

from hetero_tui.inventory.document import Mistakes
from hetero_tui.inventory.schema import Host
from remote_agent.kinds import nearest


def check_head(head: str, names: tuple[str, ...], line: int, mistakes: Mistakes) -> None:
    """The head must be a host, of any role: roles say who trains and who holds weights, and the head does neither."""
    if head in names:
        return
    close = nearest(head, names)
    hint = f"did you mean '{close}'?" if close else f"hosts are: {', '.join(names) or 'none'}"
    mistakes.add(line, "cluster.head", f"'{head}' is not a host; {hint}")


def check_hosts(hosts: tuple[Host, ...], lines: Mapping[str, int], mistakes: Mistakes) -> None:
    """Two names for one machine would start two nodes on it; a jump through itself would never arrive."""
    first: dict[tuple[str, int, str], Host] = {}
    by_name = {host.name: host for host in hosts}
    for host in hosts:
        place = (
            ("this computer", 0, "")
            if host.connection == "local"
            else ((host.address or "").lower(), host.port or 22, host.proxy_jump or "")
        )
        if place in first:
            other = first[place].name
            what = "this computer, like" if host.connection == "local" else "same address and port as"
            mistakes.add(lines[host.name], f"hosts.{host.name}", f"{what} hosts.{other} (line {lines[other]})")
        else:
            first[place] = host
        _check_jump(host, by_name, lines, mistakes)


def _check_jump(host: Host, by_name: Mapping[str, Host], lines: Mapping[str, int], mistakes: Mistakes) -> None:
    where = f"hosts.{host.name}.proxy_jump"
    line = lines[host.name]
    path = [host.name]
    current = host
    while current.proxy_jump is not None and (following := by_name.get(current.proxy_jump)) is not None:
        if following.name == host.name:
            chain = " -> ".join([*path, host.name])
            what = "leads through the host itself" if len(path) == 1 else f"goes round in a circle: {chain}"
            mistakes.add(line, where, what)
            return
        if following.name in path:
            return  # a circle further on: its own members report it
        if following.connection == "local" and current is host:
            mistakes.add(line, where, f"'{following.name}' is this computer; leave proxy_jump out")
            return
        path.append(following.name)
        current = following
