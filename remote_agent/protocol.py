"""The wire between a laptop and its machines: frozen values, one JSON document a line, and a version.

Both sides import this file, and nothing else of each other but what has no imports of its own (`states`, `settings`,
`search`).
A reader ignores fields that it does not know (fields may be added, none is renamed) and an event kind that it does not
know is skipped, so that an older laptop can follow a newer run. What arrives is data from another machine: a value of
the wrong type is a :class:`ProtocolError`, never an attribute error three layers up.

Units: seconds, bytes, samples; times are seconds since the epoch, on the clock of the machine that wrote them.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import json
import os
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, get_args, get_origin

from remote_agent.search import Search
from remote_agent.states import ControlCommand, RayState, RunState

CLUSTER_MARK = "HETERO_TUI_CLUSTER"
"""Environment variable that every process of ours carries on a host; its value is the cluster's folder there.

It is inherited by all that Ray starts, so that orphans can be told from another user's or tool's processes."""

SAME_HASHES = {"PYTHONHASHSEED": "0"}
"""A job's words may get their numbers by ``hash``, or by the order of a set: the same ones in every process."""

SIMULATED_SPEED = "HETERO_TUI_SIMULATED_SPEED"
"""Environment variable of a simulated machine (demo, lab): its speed as a fraction of this computer's (0.25)."""

EXCHANGE = "HETERO_TUI_EXCHANGE"
"""Environment variable of a cluster's processes: whether their own connections use TLS (``tls``) or not (``clear``)."""

HOST_LABEL = "hetero-host"
"""Ray node label that holds the inventory's name of the host."""

FOLLOW_PROCESS_GONE = 3
"""Exit status of ``remote_agent.follow``: the file has no last event, and the process that wrote it is gone."""

FOLLOW_NO_FILE = 4
"""Exit status of ``remote_agent.follow``: the file did not appear in time."""

FOLLOW_FILE_SHORTER = 5
"""Exit status of ``remote_agent.follow``: the file ends before the offset, so it is not the one read before."""

READER_SILENT = 6
"""Exit status of what prints lines until its reader is gone: the reader sent signs of life, and then none for long."""


class Choice(enum.StrEnum):
    """Which weights of a run are exported or served: of its newest checkpoint, of its best, or their moving average."""

    NEWEST = "newest"
    BEST = "best"
    AVERAGE = "average"


WEIGHTS = ("safetensors", "pt", "hf", "peft", "merged")
"""Formats of ``remote_agent.weights``."""

RUN_NOT_RESUMABLE = 6
"""Exit status of ``remote_agent.runs --reopen``: the run can't go on; stderr says why."""


CONTROL_FILE = "control.jsonl"
"""In a run's folder on its head host: what the user wants of the run while it is on, a :class:`RunCommand` a line."""


PROFILES = "profiles"
"""In the cluster's folder on the head: what was measured, a file for each job with its settings and devices."""

PLANS = "plans"
"""In the cluster's folder on each host: what belongs to a measurement that is under way, a folder each."""

MEASURING = "measuring: "
"""What a line begins with in which the measurement for a plan says how far it is."""

SCRIPT = "script"
"""Name of a script's process among those of a run; its output is in ``script.log`` of the run's folder."""

JOB_ARCHIVE, JOB_CODE = "job.zip", "code"
"""In a run's folder: the user's files. In it, the folder of the files as they lay around the job."""


def run_process_name(run: str) -> str:
    """The name under which the coordinator of a run is recorded on its host."""
    return f"run-{run}"


def join_address(host: str, port: int) -> str:
    """``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


MESH_INTERFACE = "htwg-"
"""How the interfaces of our WireGuard networks are named."""

MESH_PORT = 51871
"""The UDP port that they use: this one, or the next that is free."""


def short_folder(folder: str) -> str:
    """Where Ray's sockets of a cluster lie when its folder's own path is too long for them (see sun_path, unix(7)).

    One name per user and cluster's folder, so that a clean-up knows it without asking.
    """
    return f"/tmp/ht-{os.getuid()}-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]}"  # noqa: S108


class ProtocolError(ValueError):
    """A line from the other side is not what this version of the wire allows."""


# --- What the laptop sends to a host ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """How one host takes part in the cluster; input of ``python -m remote_agent.host.node start`` (one line on stdin).

    ``folder`` is the cluster's folder on the host (absolute, or starting with ``~/``). ``head_address`` and
    ``gcs_port`` are the head's, on every host. ``cpus`` is how many CPU slots Ray may hand out; None means all.
    ``epoch`` tells clusters of this name apart that were formed one after the other: the larger is the newer. It is
    the time at which it was formed, so that a cluster whose head was lost is older than the one that took its place.
    ``encrypted``: all connections between machines are under TLS, and not Ray's alone. ``meshed``: its addresses are
    those of the cluster's own WireGuard network. ``code``: a digest of the agent's sources, the same on all hosts.
    """

    cluster: str
    host: str
    role: str  # "head" | "worker"
    folder: str
    node_address: str
    head_address: str
    gcs_port: int
    dashboard_port: int
    labels: dict[str, str]
    resources: dict[str, float]
    cpus: int | None = None
    epoch: int = 0
    encrypted: bool = False
    meshed: bool = False
    code: str = ""


@dataclass(frozen=True, kw_only=True)
class DeviceSpec:
    """One device that is to train: ``device`` is torch's name for it (``cpu``, ``cuda:0``, ``mps``)."""

    host: str
    device: str
    name: str
    max_batch: int | None = None


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One training run; ``run.json`` in the run's folder on the head host.

    ``job`` is a ready job's name or ``file.py:Name`` (the file is in :data:`JOB_ARCHIVE`, or beside ``run.json``).
    ``config`` holds the ``TrainingConfig`` fields that were set; the rest keep their defaults. ``server_host`` holds
    the parameter server.
    ``resume`` is the path of a checkpoint, or of a run's folder, on the head host, that the run goes on from; ``ended``
    says how it had ended before. ``epoch`` is that of the cluster (:class:`NodeSpec`) that it runs on: of two folders
    of the same run, the one with the larger epoch tells how it stands. ``awaited`` is for the command that makes a run
    ready to go on: hosts that are not in the cluster now, whose devices the run keeps; they take part once they are
    back. ``profile`` names the file, in :data:`PROFILES` of the cluster's folder on the head, in which what is measured
    of devices and links is kept for later plans; empty: it is not kept. With ``script`` it is no training: ``job`` is a
    Ray script's file in :data:`JOB_ARCHIVE`, and ``arguments`` are its own (:mod:`remote_agent.raw_ray`). With
    ``search`` as well it is a sweep: ``job`` is what its trials train (:mod:`remote_agent.sweep`). ``commands`` is from
    which byte of :data:`CONTROL_FILE` on the user's commands are for it: those before were for the run before.
    ``away_s`` are the seconds for which it was stopped before it was resumed.
    """

    run: str
    job: str
    cluster: str
    host: str
    ray_address: str
    node_address: str
    devices: tuple[DeviceSpec, ...]
    server_host: str
    config: dict[str, Any] = field(default_factory=dict)
    resume: str = ""
    ended: str = ""
    epoch: int = 0
    awaited: tuple[str, ...] = ()
    profile: str = ""
    script: bool = False
    arguments: tuple[str, ...] = ()
    search: Search | None = None
    commands: int = 0
    away_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class JobQuestion:
    """What the head is to describe; first line on stdin of ``python -m remote_agent.describe``, before the archive.

    Attributes:
        job: as in :class:`RunSpec`; ``file.py:`` is its only job.
        settings: of ``--set``.
        trials: what trials of a sweep have beside these.
    """

    job: str
    settings: dict[str, str]
    trials: tuple[dict[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class JobSetting:
    """One of a job's own settings: ``kind`` says what it has to be, ``default`` is as ``--set`` takes it."""

    name: str
    kind: str
    default: str
    help: str


@dataclass(frozen=True, kw_only=True)
class JobDescription:
    """What a host found when it imported a job.

    Attributes:
        job: its name in the file.
        settings: those of the question, by their whole names.
        own: the job's own settings.
        config: values that its own ``TrainingConfig`` gives, as ``--set`` takes them.
        mistakes: what is wrong with the settings.
        failure: why the job can't be trained; empty: nothing is known against it.
        hint: what to do about that.
        detail: lines of the user's code.
        key: of what was described, for whoever keeps this.
    """

    job: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    own: tuple[JobSetting, ...] = ()
    config: dict[str, str] = field(default_factory=dict)
    mistakes: tuple[str, ...] = ()
    failure: str = ""
    hint: str = ""
    detail: str = ""
    key: str = ""


@dataclass(frozen=True, kw_only=True)
class RunCommand:
    """A line of :data:`CONTROL_FILE`, which the coordinator follows: ``drain`` has a host, ``add`` has devices."""

    command: ControlCommand
    host: str = ""
    devices: tuple[DeviceSpec, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a run's command will come to, as far as its last step tells.

    Attributes:
        stays: of ``drain``: every host that trains was told to leave, this one too: it goes on until another one takes
            part.
        again: of ``drain``: it was told to leave before.
        is_out: of ``drain``: it has no part in the run just now.
        is_in: of ``add``: it takes part already, and was not told to leave.
    """

    stays: bool = False
    again: bool = False
    is_out: bool = False
    is_in: bool = False


# --- What a host answers ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ProcessRecord:
    """A process of ours on a host, written there before it runs its program: ``<folder>/processes/<name>.json``.

    A process is ours when PID, start time and :data:`CLUSTER_MARK` all match. ``started`` is the kernel's start time
    of the process in the unit of its own platform: compared, never computed with.
    """

    name: str
    pid: int
    started: float
    log: str


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """Answer of ``node start`` and ``node status``.

    ``restarts`` counts how often Ray was brought back. ``cause`` and ``hint`` say why it does not run and what to do;
    ``already`` is true when it ran before and was left alone. ``spec`` is the specification in force, which tells any
    laptop how the cluster was made.
    """

    host: str
    state: RayState
    pid: int | None = None
    cause: str = ""
    hint: str = ""
    already: bool = False
    restarts: int = 0
    spec: NodeSpec | None = None


@dataclass(frozen=True, kw_only=True)
class MeshPeer:
    """Another host in the cluster's WireGuard network; ``endpoint`` is where it is reached outside of it, host:port."""

    host: str
    public_key: str
    address: str
    endpoint: str


@dataclass(frozen=True, kw_only=True)
class MeshSpec:
    """A host's end of the cluster's WireGuard network; input of ``host.mesh up`` (one line on stdin).

    ``network`` is that of all ``address``es. Without a ``private_key``, the host keeps the one that it has.
    """

    folder: str
    public_key: str
    address: str
    network: str
    port: int
    peers: tuple[MeshPeer, ...] = ()
    private_key: str = ""


@dataclass(frozen=True, kw_only=True)
class MeshReport:
    """Answer of ``host.mesh``: ``cause`` says why this host can't be in such a network; empty where it can.

    ``networks`` are those that its routes lead to already. ``port`` is the UDP port to listen on: that of its end of
    the network, ``spec`` (without its private key), else one that is free. ``is_up``: its interface is there.
    """

    cause: str = ""
    hint: str = ""
    networks: tuple[str, ...] = ()
    port: int = 0
    is_up: bool = False
    spec: MeshSpec | None = None


@dataclass(frozen=True, kw_only=True)
class Hold:
    """A word of ``host.hold``.

    ``hold`` is ``ready`` (``machine`` names it, the same for every laptop), ``waits`` (``by`` is who holds the machine
    for ``command``), ``held``, or ``none`` (it can't be held; ``by`` says why).
    """

    hold: str
    machine: str = ""
    by: str = ""
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class Listening:
    """First word of ``host.reach``: the TCP ``ports`` that it listens on, and what it sends to those who connect.

    ``firewall`` is the program that this machine's active firewall is set with, or ``macos``; empty: none was found.
    """

    word: str
    ports: tuple[int, ...]
    firewall: str = ""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """Second word of ``host.reach``: what became of each connection in the order asked for; empty: it was made."""

    outcomes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Received:
    """Third word of ``host.reach``: bytes per second that came from another host; 0: too few to tell."""

    rate: float


@dataclass(frozen=True, kw_only=True)
class HeadReport:
    """Answer of ``node head``: whether the head's Ray answers this machine now; ``silence`` says why it does not.

    ``epoch`` is the cluster's that this machine belongs to; None: no node was started here, or it is being taken down.
    """

    answers: bool
    silence: str = ""
    epoch: int | None = None


@dataclass(frozen=True, kw_only=True)
class History:
    """What ``python -m remote_agent.follow --most-steps`` prints before and after the events that are there already.

    ``history`` is the number of the newest event, which comes right after it, ``step`` the last step, and ``size`` the
    bytes of all events before the newest one.
    """

    history: int
    step: int
    size: int


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One run as its host's files tell it; ``started`` is None until the first event.

    ``host`` is the head that it was started on, which another machine's copy of it names as well;
    ``seq`` is the last event's number there, and ``checkpoint`` the step of the newest whole checkpoint (None: none).
    ``ended`` is the time of the last event of a run that is not under way. ``curve`` is a few of its losses, in their
    order, for a curve of one line; ``iterations`` and ``parameters`` are those of its start. ``step_s`` are the seconds
    that a step was measured to take and ``predicted_s`` those predicted
    (:mod:`remote_agent.planning.step_times`); None: not known.
    ``script``, ``away_s``: see :class:`RunSpec`.
    """

    id: str
    job: str
    state: RunState
    step: int
    loss: float | None
    started: float | None
    host: str = ""
    epoch: int = 0
    seq: int = 0
    checkpoint: int | None = None
    ended: float | None = None
    curve: tuple[float, ...] = ()
    iterations: int = 0
    parameters: int = 0
    step_s: float | None = None
    predicted_s: float | None = None
    script: bool = False
    away_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RunList:
    """Answer of ``python -m remote_agent.runs``: the runs in one cluster's folder, oldest first."""

    runs: tuple[RunSummary, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Exported:
    """Answer of ``python -m remote_agent.weights``: its files with their bytes; ``name`` is the export's."""

    files: dict[str, int]
    step: int
    name: str


@dataclass(frozen=True, kw_only=True)
class Trial:
    """How a trial of a sweep went: ``settings`` are its own; ``figure`` is the sweep's metric after ``steps`` steps.

    ``cause`` says why it failed; empty: it did not. ``stopped``: it was stopped early, as others were better.
    """

    number: int
    settings: dict[str, str]
    host: str = ""
    device: str = ""
    steps: int = 0
    figure: float | None = None
    stopped: bool = False
    cause: str = ""


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """Answer of ``python -m remote_agent.sweep --result``: the trials of a sweep so far, from best to worst.

    ``config`` holds what all of them have. ``finished``: all of them ended.
    """

    run: str
    job: str
    metric: str
    config: dict[str, Any]
    trials: tuple[Trial, ...]
    finished: bool


@dataclass(frozen=True, kw_only=True)
class Serving:
    """What ``python -m remote_agent.serve`` says once it answers: its port on loopback, and what can be asked there.

    ``examples`` are bodies that work, by path; a path whose inputs only the job knows has none.
    """

    port: int
    step: int
    device: str
    paths: tuple[str, ...]
    examples: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """A line of ``python -m remote_agent.logs``: what a process of a host logged or printed, and when.

    ``process`` is ``coordinator``, a worker's device (``cuda:0``), ``server``, ``supervisor``, or one of Ray's.
    """

    time: float
    process: str
    line: str


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """Something of ours that is still there after a stop.

    ``kind`` is ``process``, ``folder``, ``port`` or ``network``.
    """

    kind: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class StopReport:
    """Answer of ``node stop``: what was ended and removed, and what could not be."""

    stopped: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    leftovers: tuple[Leftover, ...] = ()


# --- What a host sends while it is watched ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DeviceSample:
    """Live use of one device. What can't be read is None, never 0. ``use`` is a fraction 0..1."""

    device: str
    name: str
    use: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None


@dataclass(frozen=True, kw_only=True)
class HostSample:
    """Live use of one host, about once a second; ``run`` is the run that has its coordinator there, if any.

    ``head_delay_s`` is a round trip from this host to the cluster's head; None there, and where it is not known.
    ``epoch`` is that of the cluster that its node is of; 0: it has none.
    """

    time: float
    cpu_use: float | None
    memory_used: int | None
    memory_total: int | None
    ray: RayState
    devices: tuple[DeviceSample, ...] = ()
    bytes_sent_per_s: float | None = None
    bytes_received_per_s: float | None = None
    run: str = ""
    head_delay_s: float | None = None
    epoch: int = 0


# --- Events of a run -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Event:
    """One line of ``events.jsonl``: ``seq`` counts from 1 without gaps."""

    kind: ClassVar[str] = ""
    seq: int
    time: float


@dataclass(frozen=True, kw_only=True)
class RunStarted(Event):
    """The coordinator runs. ``parameters`` counts the model's trained numbers; ``iterations`` is the last step."""

    kind: ClassVar[str] = "run_started"
    run: str
    job: str
    host: str
    iterations: int
    batch_size: int
    parameters: int
    config: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one worker gets of each step: ``samples`` of it, at ``speed`` samples/s plus ``overhead_s`` a step."""

    worker: str
    host: str
    device: str
    samples: int
    speed: float
    overhead_s: float = 0.0
    simulated_speed: float | None = None


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A worker's part of a model that is cut by its layers: blocks ``first`` to before ``last``, from 0.

    ``seconds`` is what they take for one micro-batch, forward and backward, and ``memory`` the bytes that they need.
    """

    worker: str
    first: int
    last: int
    seconds: float
    memory: int

    @property
    def span(self) -> str:
        """Its blocks, counted from 1: ``1-3``, or ``4``."""
        return f"{self.first + 1}-{self.last}" if self.last > self.first + 1 else f"{self.last}"


@dataclass(frozen=True, kw_only=True)
class PlanMade(Event):
    """How the batch is cut after the devices were measured, and why.

    ``iterations`` is the last step, which can follow from how fast the devices are; 0: as it was said before. Where the
    model is cut instead, ``stages`` are its parts in their order, and a step is ``micro_batches``, of which
    ``in_flight`` are on their way at once. ``terms`` are the parts of ``predicted_step_s`` by name, in seconds; empty:
    it is of computing alone. ``cut`` says of each share why it is so large; it holds until the shares change.
    ``left_out`` are hosts that take no part, and why.
    """

    kind: ClassVar[str] = "plan"
    strategy: str
    shares: tuple[Share, ...]
    predicted_step_s: float | None = None
    cut: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    iterations: int = 0
    terms: dict[str, float] = field(default_factory=dict)
    stages: tuple[Stage, ...] = ()
    micro_batches: int = 0
    in_flight: int = 0
    left_out: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class WorkerJoined(Event):
    """A worker actor owns its device and is ready."""

    kind: ClassVar[str] = "worker_joined"
    worker: str
    host: str
    device: str
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class WorkerStarting(Event):
    """The process of a worker that is lost, was drained or is new is being started; it takes part once it is ready."""

    kind: ClassVar[str] = "worker_starting"
    worker: str
    host: str
    device: str


DRAINED = "drained"
"""The cause of a worker's loss that a user asked for."""


@dataclass(frozen=True, kw_only=True)
class WorkerLost(Event):
    """A worker is gone (or silent past its deadline); its slice is issued again.

    ``retry_s``: seconds until it is started again; None: at once, or never. ``silent_s``: it was found lost because it
    had not answered for so long; None: that was seen in another way.
    """

    kind: ClassVar[str] = "worker_lost"
    worker: str
    host: str
    device: str
    step: int
    cause: str
    retry_s: float | None = None
    silent_s: float | None = None

    @property
    def words(self) -> str:
        """The cause, and when the worker is tried again."""
        return self.cause if self.retry_s is None else f"{self.cause} (tried again in {self.retry_s:.0f} s)"


@dataclass(frozen=True, kw_only=True)
class WorkerSlow(Event):
    """``factor`` is the speed now over the usual one (0.6: it does 60 % of what it did); 1: the speed is back."""

    kind: ClassVar[str] = "worker_slow"
    worker: str
    host: str
    step: int
    factor: float


@dataclass(frozen=True, kw_only=True)
class SliceReissued(Event):
    """A lost slice of ``samples`` went from ``worker`` to ``to``; it was done ``stall_s`` later."""

    kind: ClassVar[str] = "slice_reissued"
    step: int
    worker: str
    to: str
    samples: int
    stall_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Rebalanced(Event):
    """Shares follow the measured speeds from ``step`` on."""

    kind: ClassVar[str] = "rebalanced"
    step: int
    shares: tuple[Share, ...]
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class WorkerStep:
    """One worker's part of a step: four times that add up to (about) the step's seconds.

    Of a stage of a pipeline push and pull are the times in which it could not compute, while something was being sent
    to other stages or received from them.
    """

    worker: str
    host: str
    device: str
    samples: int
    compute_s: float
    push_s: float
    pull_s: float
    wait_s: float


@dataclass(frozen=True, kw_only=True)
class Step(Event):
    """Step ``step`` (from 1) is applied. ``loss`` is the mean over the step's samples, before the update.

    ``loss`` is None where it is not a finite number: JSON has no NaN, and an honest blank beats an invented figure.
    ``learning_rate`` is that of the optimizer's first parameter group, ``gradient_norm`` that of the mean gradient,
    before it is clipped; None where the strategy does not know it. ``scalars`` are the job's own figures, which its
    loss returned beside the loss, over the step's samples. ``predicted_s`` is what was predicted of
    ``seconds``, with these workers; None: nothing was.
    """

    kind: ClassVar[str] = "step"
    step: int
    loss: float | None
    samples: int
    seconds: float
    bytes_pushed: int
    bytes_pulled: int
    workers: tuple[WorkerStep, ...] = ()
    learning_rate: float | None = None
    gradient_norm: float | None = None
    scalars: dict[str, float | None] = field(default_factory=dict)
    predicted_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Evaluated(Event):
    """The weights after ``step`` were measured on the validation data.

    Attributes:
        epoch: how often all of the data had been used by then; None where its size is not known.
        metrics: figures over all of the validation data, by name; None where one is not a finite number.
        samples: of the validation data.
        seconds: that training waited for it.
        best: no evaluation before was as good, by the run's ``keep_best``.
    """

    kind: ClassVar[str] = "evaluated"
    step: int
    epoch: float | None
    metrics: dict[str, float | None]
    samples: int
    seconds: float
    best: bool = False


@dataclass(frozen=True, kw_only=True)
class Notice(Event):
    """The run goes on, and the user should know something: ``text`` says what happened, and what was done."""

    kind: ClassVar[str] = "notice"
    step: int
    host: str
    text: str


@dataclass(frozen=True, kw_only=True)
class CheckpointSaved(Event):
    """A whole checkpoint lies at ``path`` on ``host``; ``size`` in bytes.

    ``hosts`` are all that hold it whole, ``host`` the first of them. The event comes when ``host`` has it, and once
    more whenever it has been copied to others since, which may be after the event of a later checkpoint. It comes once
    where the copies are there first.
    """

    kind: ClassVar[str] = "checkpoint_saved"
    step: int
    path: str
    host: str
    size: int = 0
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ServerLost(Event):
    """The parameter server on ``host`` is gone."""

    kind: ClassVar[str] = "server_lost"
    host: str
    step: int
    cause: str


@dataclass(frozen=True, kw_only=True)
class HeadLost(Event):
    """The head host is gone."""

    kind: ClassVar[str] = "head_lost"
    host: str
    step: int
    cause: str


@dataclass(frozen=True, kw_only=True)
class CoordinatorLost(Event):
    """The process that coordinated the run on ``host`` was killed after ``step``; another one takes over."""

    kind: ClassVar[str] = "coordinator_lost"
    host: str
    step: int


@dataclass(frozen=True, kw_only=True)
class RunResumed(Event):
    """The run goes on from ``checkpoint``, after its step ``step``; events of later steps before this are superseded.

    Without a checkpoint it never ended: a lost part of the parameter server was restored from its copy in memory.

    ``samples`` were used up to then, ``iterations`` is the last step to come, and ``notes`` say what is not as it was.
    ``cause`` says how the run had ended before (empty: without a last event). With ``went_back`` it had not ended, and
    ``cause`` is why it went back; ``lost`` is then the host whose loss that was, if it was one. ``config`` are the
    settings from now on; empty: as before.
    """

    kind: ClassVar[str] = "run_resumed"
    step: int
    host: str
    checkpoint: str
    samples: int = 0
    iterations: int = 0
    cause: str = ""
    notes: tuple[str, ...] = ()
    went_back: bool = False
    lost: str = ""
    config: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RunFinished(Event):
    """The run ended well. ``stopped`` is true when it ended early; ``evaluation`` holds the job's own figures.

    For example ``{"test_accuracy": 0.973}``: fractions and losses, as the job's ``evaluate`` gave them. ``steps`` is
    the last step; ``samples`` are those of all steps, before a checkpoint that the run went on from as well. ``best``
    is the checkpoint of the best evaluation, where one is kept, and ``reason`` why the run ended before its last step.
    """

    kind: ClassVar[str] = "run_finished"
    steps: int
    samples: int
    final_loss: float | None
    samples_per_second: float
    checkpoint: str
    evaluation: dict[str, float] = field(default_factory=dict)
    stopped: bool = False
    best: str = ""
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class RunFailed(Event):
    """The run ended badly: where, at which step, why, and what the user can do. ``detail`` is the last output lines."""

    kind: ClassVar[str] = "run_failed"
    step: int
    host: str
    cause: str
    hint: str = ""
    detail: str = ""


EVENTS: tuple[type[Event], ...] = tuple(Event.__subclasses__())
_BY_KIND = {event.kind: event for event in EVENTS}
FINAL_KINDS = frozenset({RunFinished.kind, RunFailed.kind})
"""After one of these nothing more is written to ``events.jsonl``."""

# --- Lines -----------------------------------------------------------------------------------------------------------

T = TypeVar("T")


def encode(value: object) -> str:
    """One value as one JSON line (no newline in it). An event gets its ``kind`` beside ``seq`` and ``time``.

    Raises:
        ValueError: a float is NaN or infinite; JSON has neither.
    """
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        raise TypeError(f"not a protocol value: {value!r}")
    document = dataclasses.asdict(value)
    if isinstance(value, Event):
        head = {"seq": document.pop("seq"), "time": document.pop("time"), "kind": value.kind}
        document = head | document
    return json.dumps(document, separators=(",", ":"), allow_nan=False)


def decode_event(line: str) -> Event | None:
    """The event in one line of ``events.jsonl``; None for a kind that this version does not know.

    Raises:
        ProtocolError: the line is not JSON, or a field is missing or has the wrong type.
    """
    return event_of(document(line))


def decode_numbered(line: str) -> tuple[int, Event | None]:
    """As :func:`decode_event`, with the event's number, which an event of an unknown kind has too."""
    found = document(line)
    seq = found.get("seq")
    if type(seq) is not int:
        raise ProtocolError("an event without a number")
    return seq, event_of(found)


def decode(cls: type[T], line: str) -> T:
    """One value of a known type from one line.

    Raises:
        ProtocolError: as for :func:`decode_event`.
    """
    return value_of(cls, document(line))


def event_of(found: Mapping[str, Any]) -> Event | None:
    """As :func:`decode_event`, from the line's document."""
    kind = found.get("kind")
    if not isinstance(kind, str):
        raise ProtocolError("an event without a kind")
    cls = _BY_KIND.get(kind)
    return None if cls is None else _build(cls, found, kind)


def value_of(cls: type[T], found: Mapping[str, Any]) -> T:
    """As :func:`decode`, from the line's document."""
    return _build(cls, found, cls.__name__)


def document(line: str) -> dict[str, Any]:
    """The JSON object in one line; raises ProtocolError if it is none."""
    try:
        found = _DECODER.decode(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not a line of JSON: {error}") from None
    if not isinstance(found, dict):
        raise ProtocolError("a line that is not a JSON object")
    return found


def _refuse(constant: str) -> None:
    raise ValueError(f"JSON has no {constant}")


_DECODER = json.JSONDecoder(parse_constant=_refuse)  # json.loads accepts NaN and Infinity


def _build(cls: type[T], document: Mapping[str, Any], where: str) -> T:
    values: dict[str, Any] = {}
    for name, hint, is_required in _fields(typing.cast("Any", cls)):
        if name in document:
            value = document[name]
            # Nearly every value is of a plain type, and right: a run's history has millions of them.
            values[name] = value if type(value) is hint else _convert(hint, value, f"{where}.{name}")
        elif is_required:
            raise ProtocolError(f"{where}: field {name!r} is missing")
    return cls(**values)


@functools.cache
def _fields(cls: type[Any]) -> tuple[tuple[str, Any, bool], ...]:
    """(name, type, whether it must be there) of each field; to find the types takes longer than to build the value."""
    hints = typing.get_type_hints(cls)
    missing = dataclasses.MISSING
    return tuple(
        (spec.name, hints[spec.name], spec.default is missing and spec.default_factory is missing)
        for spec in dataclasses.fields(cls)
    )


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin = get_origin(hint)
    if hint is Any:
        return value
    if origin in (types.UnionType, typing.Union):
        options = get_args(hint)
        if value is None and type(None) in options:
            return None
        return _convert(next(option for option in options if option is not type(None)), value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise ProtocolError(f"{where}: expected a list")
        item = get_args(hint)[0]
        return tuple(_convert(item, entry, f"{where}[{index}]") for index, entry in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            raise ProtocolError(f"{where}: expected an object")
        item = get_args(hint)[1]
        return {key: _convert(item, entry, f"{where}.{key}") for key, entry in value.items()}
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, dict):
            raise ProtocolError(f"{where}: expected an object")
        return _build(hint, value, where)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        try:
            return hint(value)
        except ValueError:
            raise ProtocolError(f"{where}: {str(value)[:40]!r} is none of {', '.join(map(str, hint))}") from None
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ProtocolError(f"{where}: a number that is too large") from None
    if isinstance(value, hint) and not (isinstance(value, bool) and hint is not bool):
        return value
    raise ProtocolError(f"{where}: expected {hint.__name__}, got {type(value).__name__}")
