"""`levada sim sweep`: policies crossed with loads, clusters and seeds, on all cores, kept in a folder."""

from __future__ import annotations

import inspect
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from levada.cli.exit import ExitCode
from levada.cli.output import chatter
from levada.cli.sim_compare import METRIC, PRINTED, Output, show
from levada.cli.sim_flags import settings_of
from levada.errors import BadInput, Fault

if TYPE_CHECKING:
    from levada.sim.sweep import Folder, Plan, Task

T = TypeVar("T")
_Texts = list[str]

#: Flags of a simulation that may have several values here: names, help, and whether there must be one.
_MANY: dict[str, tuple[tuple[str, ...], str, bool]] = {
    "policy": (("--policy", "--policies"), "Names, or path/to/file.py:Class: a,b; may be given several times.", True),
    "cluster": (("--cluster", "--clusters"), "GPUs by type: v100=36,k80=36; may be given several times.", True),
    "rate": (
        ("--rate", "--rates"),
        "Jobs per hour: 1,2,4, or FROM:TO:COUNT; 0 or not given: all at time 0.",
        False,
    ),
    "jobs": (("--jobs",), "How many jobs: 100,200.", False),
    "seed": (("--seed", "--seeds"), "Of jobs, mechanism and policy: 0,1,2 or 0-4; 0 unless given.", False),
    "profiling": (("--profiling",), "Parts of the pairs that are measured: 0.2,0.6,1.", False),
    "reference_models": (("--reference-models",), "Workloads that all others are measured beside: 8,16,26.", False),
}
#: How many lines of progress a log gets of a sweep.
_LINES = 20
_NOT_HERE = ("rounds", "checkpoint")


def add(group: typer.Typer) -> None:
    """Adds `sweep` to the group `sim`."""
    group.command("sweep")(_with_flags(sweep))


def sweep(
    *,
    out: Annotated[str, typer.Option("--out", help="The folder to keep it in; an interrupted sweep goes on there.")],
    processes: Annotated[
        int | None,
        typer.Option("--processes", "-j", min=1, max=1024, help="Runs at a time; one per core unless given."),
    ] = None,
    on: Annotated[
        str | None, typer.Option("--on", help="Run it on a Dask cluster: dask://HOST:PORT, its scheduler.")
    ] = None,
    timelines: Annotated[
        bool, typer.Option("--timelines", help="Keep who ran when and where, for Gantt charts.")
    ] = False,
    run_saturated: Annotated[
        bool, typer.Option("--run-saturated", help="Do not stop runs whose queue grows without bound.")
    ] = False,
    cutoffs: Annotated[
        str | None, typer.Option("--cutoffs", help="A file like Gavel's: leave out rates above what a policy can bear.")
    ] = None,
    metric: METRIC = None,
    output: PRINTED = Output.TABLE,
    **flags: Any,
) -> None:
    """Run every policy with every load, cluster and seed, and compare them."""
    from levada.report.data import read
    from levada.sim.sweep import Folder

    plan = _plan(flags, judged=not run_saturated, timeline=timelines, cutoffs=cutoffs)
    tasks = plan.tasks()
    folder = Folder(out)
    folder.open(plan)
    with _terminated_as_interrupted():
        _run(tasks, folder, processes or len(os.sched_getaffinity(0)), on)
    show(read([out]), metric, output)


# ---------------------------------------------------------------------------------------------------------- running


def _run(tasks: list[Task], folder: Folder, processes: int, on: str | None) -> None:
    """Runs what is not done yet; ends the command where somebody interrupts it, or runs failed."""
    from levada.sim.sweep import work
    from levada.sim.sweep.dask import work_on

    todo = [task for task in tasks if not folder.is_done(task)]
    if len(todo) < len(tasks):
        chatter(f"{len(tasks) - len(todo):,} of {len(tasks):,} runs were done before")
    named = {task.key: _named(task) for task in todo}
    failed: list[str] = []
    over = 0
    try:
        with _progress(len(tasks), len(tasks) - len(todo)) as tell:
            here = min(processes, max(len(todo), 1))
            for done in work_on(on, todo, folder) if on is not None and todo else work(todo, folder, here):
                over += 1
                if done.status == "failed":
                    failed.append(f"{named[done.key]}: {done.text}")
                tell(f"{named[done.key]}: {done.status}")
    except KeyboardInterrupt:
        folder.gather()
        chatter(
            f"levada: interrupted; {over:,} of {len(todo):,} runs are kept, and the same command goes on from there"
        )
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    kept = folder.gather()
    for line in failed:
        chatter(f"levada: {' '.join(line.split())}")
    if failed:
        chatter(f"levada: {len(failed):,} of {len(tasks):,} runs failed; the same command tries them again")
        raise typer.Exit(ExitCode.ERROR)
    chatter(f"{folder.path}: {kept:,} runs")


def _named(task: Task) -> str:
    settings = task.settings
    load = f" at {settings.rate:g}/h" if settings.rate else f" with {settings.jobs} jobs" if settings.jobs else ""
    return f"{settings.policy}{load}, seed {settings.seed}"


@contextmanager
def _progress(total: int, before: int) -> Iterator[Callable[[str], None]]:
    """A bar on a terminal; elsewhere a line now and then."""
    if not sys.stderr.isatty():
        over = before

        def say(text: str) -> None:
            nonlocal over
            over += 1
            if over * _LINES // total > (over - 1) * _LINES // total:
                chatter(f"{over:,} of {total:,} runs done; the last was {text}")

        yield say
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (MofNCompleteColumn(), BarColumn(), TimeElapsedColumn(), "left", TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total, completed=before)

        def tell(text: str) -> None:
            bar.update(task, advance=1, description=text.replace("[", "("))

        yield tell


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """A polite `kill` is a Ctrl-C."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# ------------------------------------------------------------------------------------------------------------ flags


def _with_flags(verb: Callable[..., None]) -> Callable[..., None]:
    """*verb* with the flags of a simulation, some of which take several values."""

    def run(**flags: Any) -> None:
        verb(**flags)

    own = [
        each for each in inspect.signature(verb, eval_str=True).parameters.values() if each.kind is not each.VAR_KEYWORD
    ]
    shared = []
    for each in inspect.signature(settings_of, eval_str=True).parameters.values():
        if each.name in _MANY:
            names, text, is_needed = _MANY[each.name]
            kind = _Texts if is_needed else _Texts | None
            default = inspect.Parameter.empty if is_needed else None
            each = each.replace(annotation=Annotated[kind, typer.Option(*names, help=text)], default=default)
        if each.name not in _NOT_HERE:
            shared.append(each)
    run.__doc__ = verb.__doc__
    # The command line is read off the signature; mypy does not know that functions may have one.
    run.__signature__ = inspect.Signature([*shared, *own])  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in (*shared, *own)}
    return run


def _plan(flags: dict[str, Any], *, judged: bool, timeline: bool, cutoffs: str | None) -> Plan:
    """The sweep that these flags ask for; raises BadInput with all faults."""
    from levada.jobfile.read import read_bytes
    from levada.sim.settings import parse_cluster
    from levada.sim.sweep import Plan
    from levada.sim.sweep.plan import parse_cutoffs

    faults: list[Fault] = []

    def values(name: str, parse: Callable[[str], list[T]]) -> tuple[T, ...]:
        found: list[T] = []
        for text in flags.pop(name) or ():
            try:
                found += parse(text)
            except BadInput as error:
                faults.extend(error.faults)
        return tuple(found)

    def tried(make: Callable[[], T]) -> T | None:
        try:
            return make()
        except BadInput as error:
            faults.extend(error.faults)
            return None

    axes: dict[str, tuple[Any, ...]] = {
        "policy": values("policy", lambda text: [part for part in text.split(",") if part]),
        "cluster": values("cluster", lambda text: [parse_cluster(text)]),
        "rate": values("rate", parse_rates),
        "jobs": values("jobs", lambda text: parse_wholes("--jobs", text)),
        "seed": values("seed", lambda text: parse_wholes("--seed", text)) or (0,),
        "profiling": values("profiling", lambda text: parse_numbers("--profiling", text)),
        "reference_models": values("reference_models", lambda text: parse_wholes("--reference-models", text)),
    }
    # The values of axes replace these; what is left out has its default.
    common = tried(lambda: settings_of(policy="", cluster="v100=1", **flags))
    cut = tried(lambda: parse_cutoffs(read_bytes(cutoffs), cutoffs)) if cutoffs is not None else ()
    if not axes["policy"]:
        faults.append(Fault("", "--policy names no policy"))
    if faults or common is None:
        raise BadInput(faults)
    return Plan(common=common, axes=axes, judged=judged, timeline=timeline, cutoffs=cut or ())


def parse_wholes(flag: str, text: str) -> list[int]:
    """Whole numbers of `1,2,5-8`; raises BadInput."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (_is_whole(first) and (not dash or _is_whole(last))):
            raise BadInput.one(f"{flag} {text!r}: {part!r} must be a whole number, or FROM-TO")
        ends = int(first), int(last) if dash else int(first)
        if not 0 <= ends[1] - ends[0] <= 10_000:
            raise BadInput.one(f"{flag} {text!r}: {part!r} must go up, by at most 10000")
        found += range(ends[0], ends[1] + 1)
    return found


def parse_numbers(flag: str, text: str) -> list[float]:
    """Numbers of `0.5,1`; raises BadInput."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise BadInput.one(f"{flag} {text!r} must be numbers with commas between them") from None


def parse_rates(text: str) -> list[float]:
    """Jobs per hour of `1,2.5`, or so many from one to another at equal distances: `FROM:TO:COUNT`; raises BadInput."""
    if ":" not in text:
        return parse_numbers("--rate", text)
    parts = text.split(":")
    try:
        low, high, count = float(parts[0]), float(parts[1]), int(parts[2])
        good = len(parts) == 3 and 0 <= low <= high < float("inf") and 2 <= count <= 10_000
    except (ValueError, IndexError):
        good = False
    if not good:
        raise BadInput.one(f"--rate {text!r} must be FROM:TO:COUNT, as in 0.5:6:12")
    points = [low + (high - low) * place / (count - 1) for place in range(count)]
    # At rate 0 all jobs come at once, which is no point on the way to the others.
    return [round(point, 12) for point in points if point > 0]


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) < 2**32
