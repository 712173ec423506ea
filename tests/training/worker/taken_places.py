"""``python -m tests.training.worker.taken_places``: strangers take the places of a group's members.

A process of its own: were gloo to end it, the test says so. Prints what each member said, as JSON, once the group
after that has summed.
"""

from __future__ import annotations

import json
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import psutil
import torch

from remote_agent.training.shared.messages import GroupMembership
from remote_agent.training.worker import process_group
from remote_agent.training.worker.process_group import GroupBroken, ProcessGroup
from remote_agent.training.worker.rendezvous import Member, Rendezvous

ADDRESS = "127.0.0.1"


def listening() -> set[int]:
    """Ports that this process listens on."""
    found = psutil.Process().net_connections("tcp")
    return {each.laddr.port for each in found if each.status == psutil.CONN_LISTEN}


def main() -> None:
    meeting, strangers = Rendezvous(ADDRESS), list[socket.socket]()
    before, right = listening(), Member.swap

    def swap(member: Member, own: bytes, ranks: tuple[int, ...]) -> list[bytes]:
        for port in listening() - before:
            for place in range(4):  # gloo takes the first who says which of its connections it is
                strangers.append(socket.create_connection((ADDRESS, port)))
                strangers[-1].sendall(struct.pack("<q", place))
        return right(member, own, ranks)

    def join(membership: GroupMembership) -> str:
        try:
            ProcessGroup(membership, ADDRESS)
        except GroupBroken as broken:
            return str(broken)
        return "formed"

    def summed(membership: GroupMembership) -> list[float]:
        tensor = torch.ones(3)
        ProcessGroup(membership, ADDRESS).sum([tensor], lambda: None)
        numbers: list[float] = tensor.tolist()
        return numbers

    with ThreadPoolExecutor(2) as pool:
        with mock.patch.object(Member, "swap", swap), mock.patch.object(process_group, "GROUP_S", 0.5):
            said = list(pool.map(join, meeting.invite("ab")))
        assert strangers
        sums = list(pool.map(summed, meeting.invite("ab")))
    print(json.dumps({"said": said, "sums": sums}))


if __name__ == "__main__":
    main()
