"""`levada sim sweep`: run policies x loads x clusters x seeds in parallel."""

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
from levada.cli.output import message
from levada.cli.sim_compare import METRIC, PRINTED, CompareFormat, show
from levada.cli.sim_flags import settings_of
from levada.errors import BadInput, Fault

if TYPE_CHECKING:
    from levada.sim.sweep import Folder, SweepPlan, Task

T = TypeVar("T")
_Texts = list[str]

#: Flags of a simulation with several values in a sweep: names, help, and whether the flag is required.
_AXES: dict[str, tuple[tuple[str, ...], str, bool]] = {
    "policy": (("--policy", "--policies"), "Policies: names or path/to/file.py:Class, e.g. a,b; repeatable.", True),
    "cluster": (("--cluster", "--clusters"), "GPUs by type, e.g. v100=36,k80=36; repeatable.", True),
    "rate": (
        ("--rate", "--rates"),
        "Arrivals per hour: 1,2,4 or FROM:TO:COUNT; 0 (default): all at time 0.",
        False,
    ),
    "jobs": (("--jobs",), "Numbers of jobs, e.g. 100,200.", False),
    "seed": (("--seed", "--seeds"), "Seeds of jobs, mechanism and policy: 0,1,2 or 0-4. Default: 0.", False),
    "profiling": (("--profiling",), "Fractions of job pairs that are measured, e.g. 0.2,0.6,1.", False),
    "reference_models": (("--reference-models",), "Numbers of reference workloads, e.g. 8,16,26.", False),
}
#: Number of progress lines of a sweep without a terminal.
_PROGRESS_LINES = 20
_EXCLUDED_FLAGS = ("rounds", "checkpoint")


def add(group: typer.Typer) -> None:
    """Add `sweep` to the group `sim`."""
    group.command("sweep")(_with_flags(sweep))


def sweep(
    *,
    out: Annotated[
        str, typer.Option("--out", help="Folder of the results; the same command resumes an interrupted sweep.")
    ],
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes", "-j", min=1, max=1024, help="Number of parallel runs.", show_default="one per core"
        ),
    ] = None,
    on: Annotated[
        str | None, typer.Option("--on", help="Run on a Dask cluster: dask://HOST:PORT of its scheduler.")
    ] = None,
    timelines: Annotated[
        bool, typer.Option("--timelines", help="Store placements over time, for Gantt charts.")
    ] = False,
    run_saturated: Annotated[
        bool, typer.Option("--run-saturated", help="Do not stop runs whose queue grows without bound.")
    ] = False,
    cutoffs: Annotated[
        str | None,
        typer.Option("--cutoffs", help="Cutoff file in Gavel's format: skip rates above the cutoff of a policy."),
    ] = None,
    metric: METRIC = None,
    output: PRINTED = CompareFormat.TABLE,
    **flags: Any,
) -> None:
    """Run policies, loads, clusters and seeds; compare them."""
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
    """Run the tasks that are not done; exits after an interrupt or failed runs."""
    from levada.sim.sweep import work
    from levada.sim.sweep.dask import work_on

    todo = [task for task in tasks if not folder.is_done(task)]
    if len(todo) < len(tasks):
        message(f"{len(tasks) - len(todo):,} of {len(tasks):,} runs are already done")
    labels = {task.key: _label(task) for task in todo}
    failed: list[str] = []
    done = 0
    try:
        with _progress(len(tasks), len(tasks) - len(todo)) as advance:
            local = min(processes, max(len(todo), 1))
            for result in work_on(on, todo, folder) if on is not None and todo else work(todo, folder, local):
                done += 1
                if result.status == "failed":
                    failed.append(f"{labels[result.key]}: {result.text}")
                advance(f"{labels[result.key]}: {result.status}")
    except KeyboardInterrupt:
        folder.gather()
        message(f"levada: interrupted; {done:,} of {len(todo):,} runs are stored; run the same command to resume")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    count = folder.gather()
    for line in failed:
        message(f"levada: {' '.join(line.split())}")
    if failed:
        message(f"levada: {len(failed):,} of {len(tasks):,} runs failed; run the same command to retry them")
        raise typer.Exit(ExitCode.ERROR)
    message(f"{folder.path}: {count:,} runs")


def _label(task: Task) -> str:
    settings = task.settings
    load = f" at {settings.rate:g}/h" if settings.rate else f" with {settings.jobs} jobs" if settings.jobs else ""
    return f"{settings.policy}{load}, seed {settings.seed}"


@contextmanager
def _progress(total: int, before: int) -> Iterator[Callable[[str], None]]:
    """Show a bar on a terminal, else up to 20 lines per sweep."""
    if not sys.stderr.isatty():
        done = before

        def print_line(text: str) -> None:
            nonlocal done
            done += 1
            if done * _PROGRESS_LINES // total > (done - 1) * _PROGRESS_LINES // total:
                message(f"{done:,} of {total:,} runs done; last: {text}")

        yield print_line
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

        def update_bar(text: str) -> None:
            bar.update(task, advance=1, description=text.replace("[", "("))

        yield update_bar


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# ------------------------------------------------------------------------------------------------------------ flags


def _with_flags(verb: Callable[..., None]) -> Callable[..., None]:
    """Return *verb* as a command with the flags of a simulation; axes take several values."""

    def run(**flags: Any) -> None:
        verb(**flags)

    own = [
        parameter
        for parameter in inspect.signature(verb, eval_str=True).parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    shared = []
    for parameter in inspect.signature(settings_of, eval_str=True).parameters.values():
        if parameter.name in _AXES:
            names, text, is_required = _AXES[parameter.name]
            kind = _Texts if is_required else _Texts | None
            default = inspect.Parameter.empty if is_required else None
            parameter = parameter.replace(annotation=Annotated[kind, typer.Option(*names, help=text)], default=default)
        if parameter.name not in _EXCLUDED_FLAGS:
            shared.append(parameter)
    run.__doc__ = verb.__doc__
    # Typer reads the flags from the signature; mypy does not know `__signature__`.
    run.__signature__ = inspect.Signature([*shared, *own])  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in (*shared, *own)}
    return run


def _plan(flags: dict[str, Any], *, judged: bool, timeline: bool, cutoffs: str | None) -> SweepPlan:
    """Return the sweep plan for these flags; raises BadInput with all errors."""
    from levada.jobfile.read import read_bytes
    from levada.sim.settings import parse_cluster
    from levada.sim.sweep import SweepPlan
    from levada.sim.sweep.plan import parse_cutoffs

    faults: list[Fault] = []

    def values(name: str, parse: Callable[[str], list[T]]) -> tuple[T, ...]:
        parsed: list[T] = []
        for text in flags.pop(name) or ():
            try:
                parsed += parse(text)
            except BadInput as error:
                faults.extend(error.faults)
        return tuple(parsed)

    def attempt(make: Callable[[], T]) -> T | None:
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
    # The axes replace policy and cluster.
    common = attempt(lambda: settings_of(policy="", cluster="v100=1", **flags))
    cut = attempt(lambda: parse_cutoffs(read_bytes(cutoffs), cutoffs)) if cutoffs is not None else ()
    if not axes["policy"]:
        faults.append(Fault("", "--policy: is empty; must name at least one policy"))
    if faults or common is None:
        raise BadInput(faults)
    return SweepPlan(common=common, axes=axes, judged=judged, timeline=timeline, cutoffs=cut or ())


def parse_wholes(flag: str, text: str) -> list[int]:
    """Parse whole numbers such as `1,2,5-8`; raises BadInput."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (_is_whole(first) and (not dash or _is_whole(last))):
            raise BadInput.one(f"{flag} {text!r}: {part!r} must be a whole number or FROM-TO, e.g. 0-4")
        ends = int(first), int(last) if dash else int(first)
        if not 0 <= ends[1] - ends[0] <= 10_000:
            raise BadInput.one(f"{flag} {text!r}: {part!r} must be an ascending range of at most 10000")
        numbers += range(ends[0], ends[1] + 1)
    return numbers


def parse_numbers(flag: str, text: str) -> list[float]:
    """Parse numbers such as `0.5,1`; raises BadInput."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise BadInput.one(f"{flag} {text!r} must be comma-separated numbers, e.g. 0.5,1") from None


def parse_rates(text: str) -> list[float]:
    """Parse rates: `1,2.5`, or COUNT evenly spaced rates with `FROM:TO:COUNT`; raises BadInput."""
    if ":" not in text:
        return parse_numbers("--rate", text)
    parts = text.split(":")
    try:
        low, high, count = float(parts[0]), float(parts[1]), int(parts[2])
        is_valid = len(parts) == 3 and 0 <= low <= high < float("inf") and 2 <= count <= 10_000
    except (ValueError, IndexError):
        is_valid = False
    if not is_valid:
        raise BadInput.one(f"--rate {text!r} must be FROM:TO:COUNT, e.g. 0.5:6:12")
    points = [low + (high - low) * place / (count - 1) for place in range(count)]
    # Rate 0 means that all jobs arrive at time 0, which is not a low rate.
    return [round(point, 12) for point in points if point > 0]


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) < 2**32
