"""Everything that can go wrong for a user, as one tree; each error says host, step, cause and what to do next.

HeteroTuiError                      exit code 1 unless said otherwise
├── UsageError                      exit code 2: flags, names, job files
│   ├── InventoryError              exit code 2: every mistake in inventory.yaml at once
│   └── OrderError                  exit code 2: every mistake in what is to be trained at once
│       └── PlanError               exit code 2: the same of a what-if or a fleet file
├── HostError                       one host failed, the others go on (exit code 3 if any other succeeded)
│   ├── Unreachable                 no TCP connection, or it was lost
│   ├── AuthenticationFailed        the host refused user or key
│   ├── HostKeyUnknown              never seen: show its SHA256 and ask
│   ├── HostKeyChanged              seen with another key: refuse
│   ├── PythonMissing               no usable Python on the host
│   ├── RequirementMissing          Ray, torch, a version or a device that the step needs is not there
│   ├── CommandFailed               a command of ours ended with an error on the host
│   ├── BadAnswer                   the host sent what can't be right: not ours, too much, out of bounds
│   └── DeadlineExceeded            the host did not answer in time
├── ClusterError                    the cluster as a whole can't do what was asked
└── RunError                        a training run failed or does not exist
    ├── CoordinatorGone             its process ended without a last word; its host lives
    ├── TakenDown                   a user ended it, or its whole cluster: nothing starts unasked
    │   └── RunStopped              its files say that a user ended it: it is not lost
    ├── HeadGone                    its host is lost: no other host reaches it either
    └── NoCopy                      no host that is left holds a checkpoint of it
"""

from __future__ import annotations

from typing import ClassVar

from hetero_tui.text import one_line

_MOST = 2000
"""Characters of one mistake."""


class HeteroTuiError(Exception):
    """An error that is meant for the user: ``cause`` is one sentence, ``hint`` is what to do next."""

    exit_code: ClassVar[int] = 1

    def __init__(self, cause: str, *, step: str = "", hint: str = "") -> None:
        super().__init__(cause)
        self.cause = cause
        self.step = step
        self.hint = hint

    def __str__(self) -> str:
        where = f"{self.step}: " if self.step else ""
        return f"{where}{self.cause}" + (f" -> {self.hint}" if self.hint else "")


class UsageError(HeteroTuiError):
    """A flag, a name or a file that the user gave can't be used."""

    exit_code = 2


class InventoryError(UsageError):
    """``inventory.yaml`` has mistakes; ``mistakes`` holds one line for each, with line number and key."""

    def __init__(self, path: str, mistakes: tuple[str, ...], cause: str = "") -> None:
        count = "1 mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
        super().__init__(cause or f"{path} has {count}", step="inventory")
        self.path = path
        self.mistakes = mistakes

    def __str__(self) -> str:
        return "\n".join([self.cause + ":", *(f"  {mistake}" for mistake in self.mistakes)])


class OrderError(UsageError):
    """What is to be trained is not valid: the job, its file, settings; ``mistakes`` holds one line for each."""

    _step: ClassVar[str] = ""  # plan, train, sweep and run read what is to be trained

    def __init__(self, mistakes: tuple[str, ...], *, hint: str = "") -> None:
        mistakes = tuple(one_line(mistake, _MOST) for mistake in mistakes)  # what a user typed is part of them
        super().__init__("; ".join(mistakes), step=self._step, hint=hint)
        self.mistakes = mistakes

    def __str__(self) -> str:
        if len(self.mistakes) == 1:
            return super().__str__()
        advice = [f"  -> {self.hint}"] if self.hint else []
        return "\n".join([f"{len(self.mistakes)} mistakes:", *(f"  {mistake}" for mistake in self.mistakes), *advice])


class ChangesError(OrderError):
    """Settings with which a run can't go on; as :class:`OrderError`."""

    _step = "resume run"


class SweepError(OrderError):
    """What is to be swept is not valid; as :class:`OrderError`."""

    _step = "sweep"


class PlanError(OrderError):
    """A what-if or a fleet file can't be used; as :class:`OrderError`."""

    _step = "plan"


class HostError(HeteroTuiError):
    """Something failed on, or on the way to, one host. ``status`` is its word in ``probe --json``."""

    status: ClassVar[str] = "error"

    def __init__(self, host: str, cause: str, *, step: str, hint: str = "") -> None:
        # What the host said is part of it: it gets one line, whatever that is.
        super().__init__(one_line(cause, 600), step=step, hint=one_line(hint, 400))
        self.host = host

    def __str__(self) -> str:
        return f"{self.host}: {super().__str__()}"


class Unreachable(HostError):
    """No connection could be made, or it broke and did not come back in time."""

    status = "unreachable"


class AuthenticationFailed(HostError):
    """The host answered but accepts neither this user nor these keys."""

    status = "auth_failed"


class HostKeyUnknown(HostError):
    """A key was never seen: that of the server at ``endpoint``, which may be a jump host on the way to the host.

    ``fingerprint`` is its SHA256 as OpenSSH prints it.
    """

    status = "host_key_unknown"

    def __init__(
        self, host: str, cause: str, *, step: str, hint: str = "", fingerprint: str = "", endpoint: str = ""
    ) -> None:
        super().__init__(host, cause, step=step, hint=hint)
        self.fingerprint = fingerprint
        self.endpoint = one_line(endpoint)


class HostKeyChanged(HostError):
    """The host shows another key than the one in known_hosts: refused, whatever flags are given."""

    status = "host_key_changed"


class PythonMissing(HostError):
    """The host has no Python that can run the probe or the agent."""


class RequirementMissing(HostError):
    """The host lacks something that this step needs, such as Ray, torch, or a matching version."""


class CommandFailed(HostError):
    """A command of ours ended with an error; ``output`` holds its last lines, stripped of control characters.

    ``exit_status`` is the command's, where it had one.
    """

    def __init__(
        self, host: str, cause: str, *, step: str, hint: str = "", output: str = "", exit_status: int | None = None
    ) -> None:
        super().__init__(host, cause, step=step, hint=hint)
        self.output = output
        self.exit_status = exit_status


class BadAnswer(HostError):
    """The host sent what can't be right: it is not ours, too much, or out of all bounds."""


class DeadlineExceeded(HostError):
    """The host is reachable but did not finish a step within its deadline."""

    status = "unreachable"


class ClusterError(HeteroTuiError):
    """The cluster as a whole can't do what was asked."""


class RunError(HeteroTuiError):
    """A training run failed, or there is no such run."""


class CoordinatorGone(RunError):
    """A run's process ended without a last word (killed, out of memory), while its host lives."""


class TakenDown(RunError):
    """The run ended as a user wanted it: with its cluster, here or elsewhere. It goes on when a user asks for it."""


class RunStopped(TakenDown):
    """The run's files say that a user ended it, though it had no time for a last word: it is not lost."""


class HeadGone(RunError):
    """The head host is lost, and the run's coordinator with it."""


class NoCopy(RunError):
    """No host that is left holds a checkpoint of the run, so it can't go on without the others."""
