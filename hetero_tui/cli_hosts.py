"""The commands about machines themselves: bootstrap, check, add, remove."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hetero_tui import commanding
from hetero_tui.cli_options import Host as HostName
from hetero_tui.commanding import Call
from hetero_tui.errors import UsageError
from hetero_tui.intents import half_way
from hetero_tui.launcher import DONE
from hetero_tui.narration import Output

if TYPE_CHECKING:  # asyncssh takes a while to import: `--help` does without
    from hetero_tui.fleet.install.sources import Sources
    from hetero_tui.outcomes import BootstrapReport


commands = typer.Typer()

FromLaptop = Annotated[
    bool,
    typer.Option("--from-laptop", help="This laptop collects the packages and sends them: hosts without internet."),
]
Wheels = Annotated[
    str, typer.Option("--wheels", metavar="FOLDER", help="With --from-laptop: take them from this folder of wheels.")
]
Index = Annotated[
    str, typer.Option("--index", metavar="URL", envvar="HETERO_TUI_INDEX", help="Package index in PyPI's place.")
]
TorchIndex = Annotated[
    str,
    typer.Option(
        "--torch-index",
        metavar="URL",
        envvar="HETERO_TUI_TORCH_INDEX",
        help="Where an index for each build of torch lies (URL/cpu, URL/cu126...), in download.pytorch.org's place.",
    ),
]
PythonMirror = Annotated[
    str,
    typer.Option(
        "--python-mirror",
        metavar="URL",
        envvar="HETERO_TUI_PYTHON_MIRROR",
        help="Mirror of python-build-standalone's releases, for hosts without a fit Python.",
    ),
]


@commanding.command(commands, interrupted=half_way("installing"))
async def bootstrap(
    call: Call,
    output: Output,
    extras: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="PACKAGE", help="A package that jobs need besides; repeatable, and kept."),
    ] = None,
    from_laptop: FromLaptop = False,
    wheels: Wheels = "",
    index: Index = "",
    torch_index: TorchIndex = "",
    python_mirror: PythonMirror = "",
) -> int:
    """Install Ray and torch on every machine that lacks them. Each gets its own environment, for its accelerator."""
    from hetero_tui.fleet.install.lock import mistakes_in

    wanted = sources(from_laptop, wheels, index, torch_index, python_mirror, mistakes_in(extras or ()))
    async with call.session() as session:
        report = await session.bootstrap(wanted, extras or ())
        if output.as_json:
            output.document(_bootstrap_document(report))
        elif report.installed:
            output.table(["HOST", "ENVIRONMENT"], [[entry.host, entry.detail] for entry in report.installed])
        for error in report.failed.values():
            output.error(error)
        return commanding.exit_code(done=report.installed, failed=list(report.failed))


@commanding.command(commands)
async def check(
    call: Call,
    output: Output,
    fix: Annotated[
        bool, typer.Option("--fix", help="Make hetero-tui's own environments anew that do not work; nothing else.")
    ] = False,
    from_laptop: FromLaptop = False,
    wheels: Wheels = "",
    index: Index = "",
    torch_index: TorchIndex = "",
    python_mirror: PythonMirror = "",
) -> int:
    """Find what keeps machines from training well, and its mend. On each and between them; nothing is changed."""
    wanted = sources_if(fix, "--fix", from_laptop, wheels, index, torch_index, python_mirror)
    async with call.session(narrate=fix) as session:
        report = await session.check(wanted)
        if output.as_json:
            output.document(asdict(report))
        else:
            for finding in report.findings:
                output.data(f"{finding.host}: {finding.what}", "bold red" if finding.level == "bad" else "yellow")
                output.data(f"    why it matters: {finding.why}")
                output.data(f"    what to do: {finding.mend}")
            good = [host for host in report.hosts if host.name not in report.bad]
            rows = [
                [
                    *(host.name, host.address, ", ".join(host.devices), _milliseconds(host.round_trip)),
                    *(_megabits(host.sends), _megabits(host.receives)),
                ]
                for host in good
            ]
            if rows:
                output.table(["FIT", "RAY'S ADDRESS", "TRIED", "ROUND TRIP", "SENDS", "RECEIVES"], rows)
            if report.network:
                output.data(report.network)
        fit = [host for host in report.hosts if host.name not in report.bad]
        return commanding.exit_code(done=fit, failed=report.bad)


def _megabits(rate: float | None) -> str:
    return "n/a" if rate is None else f"{rate * 8 / 1e6:.0f} Mbit/s"


def _milliseconds(seconds: float | None) -> str:
    return "n/a" if seconds is None else f"{seconds * 1000:.1f} ms"


@commanding.command(commands)
async def add(
    call: Call,
    output: Output,
    target: Annotated[str, typer.Argument(metavar="[USER@]HOST[:PORT]", help="Or a Host of ~/.ssh/config.")],
    name: Annotated[
        str, typer.Option("--name", help="Its name in the inventory; made of its address if not given.")
    ] = "",
    identity_file: Annotated[
        str, typer.Option("--identity-file", metavar="FILE", help="Private key to log in with.")
    ] = "",
    jump: Annotated[str, typer.Option("--jump", metavar="HOST", help="Host to go through, as `proxy_jump`.")] = "",
    unchecked: Annotated[bool, typer.Option("--unchecked", help="Write it even if it does not answer now.")] = False,
) -> int:
    """Look at a machine, and write it into the inventory. Comments there are kept."""
    from hetero_tui.inventory.adding import parse_target
    from hetero_tui.machines import Machines

    _refuse_missing(identity_file)
    machines = Machines(call.path, accept_new_host_keys=call.accept)
    fields = parse_target(target)
    fields |= {"identity_file": identity_file} if identity_file else {}
    fields |= {"proxy_jump": jump} if jump else {}
    chosen = name or machines.free_name(str(fields["address"]))
    error = await commanding.write_host(machines, chosen, fields, output, unchecked=unchecked)
    added, failed = ([chosen], []) if error is None else ([], [chosen])
    if output.as_json:
        output.document({"added": added, "failed": failed, "inventory": str(call.path)})
    return commanding.exit_code(done=added, failed=failed)


def _refuse_missing(identity_file: str) -> None:
    if identity_file and not Path(identity_file).expanduser().is_file():
        raise UsageError(f"--identity-file {identity_file}: there is no such file", step="add")


@commanding.command(commands, options=("as_json", "plain"))
async def remove(
    call: Call,
    output: Output,
    host: HostName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int:
    """Take a machine out of the inventory. Comments and all else stay; nothing is done on the machine."""
    from hetero_tui.machines import Machines

    if not yes and commanding.on_a_terminal(output) and not commanding.asks(f"Take {host} out of {call.path}?"):
        raise UsageError("nothing was done", step="remove")
    taken = Machines(call.path).remove(host)
    if output.as_json:
        output.document({"removed": host, "inventory": str(call.path), "carries": bool(taken.commands)})
    else:
        output.data(f"{host} is no longer in {call.path}")
    for command in taken.commands:
        output.say(f"something of ours may still be there: `{command}` takes it away, now as before")
    return DONE


def sources_if(wanted: bool, option: str, *options: Any) -> Sources | None:
    """As :func:`sources` where something is to be installed, as ``option`` says; None where nothing is.

    Raises:
        UsageError: as there; or an option tells how to install, and ``option`` is not there.
    """
    if wanted:
        return sources(*options)
    given = [name for name, value in zip(("--from-laptop", "--wheels"), options, strict=False) if value]
    if given:  # the others may be in the environment
        goes = "goes" if len(given) == 1 else "go"
        raise UsageError(f"{' and '.join(given)} {goes} with {option}: without it nothing is installed")
    return None


def sources(
    from_laptop: bool, wheels: str, index: str, torch_index: str, python_mirror: str, mistakes: tuple[str, ...] = ()
) -> Sources:
    """Where packages come from, by the options of a command line.

    Raises:
        UsageError: they do not go together, the folder is none, or a URL is none.
    """
    from hetero_tui.fleet.install.sources import TORCH_INDEX, Sources

    folder = Path(wheels).expanduser().absolute() if wheels else None
    wrong = list(mistakes)
    for option, url in (("--index", index), ("--torch-index", torch_index), ("--python-mirror", python_mirror)):
        if url and not re.match(r"(https?://[^\s/]|file:///)", url):
            wrong.append(f"{option} {url}: is no URL, such as https://mirror.example/simple")
    if folder is not None and not from_laptop:
        wrong.append("--wheels goes with --from-laptop")
    if folder is not None and not folder.is_dir():
        wrong.append(f"--wheels: there is no folder {folder}")
    if wrong:
        raise UsageError("; ".join(wrong), step="bootstrap")
    return Sources(index, torch_index or TORCH_INDEX, python_mirror, from_laptop, folder)


def _bootstrap_document(report: BootstrapReport) -> dict[str, Any]:
    from hetero_tui.reports import error_document

    done = [
        {
            "name": entry.host,
            "changed": entry.changed,
            "python": entry.python,
            "torch_build": entry.build,
            "detail": entry.detail,
            "seconds": round(entry.seconds, 1),
            "error": None,
        }
        for entry in report.installed
    ]
    return {"hosts": [*done, *({"name": name, "error": error_document(e)} for name, e in report.failed.items())]}
