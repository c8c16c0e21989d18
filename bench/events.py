"""Single events with 6,000 jobs on 10,000 GPUs: a live engine gets them one by one.

An event is measured without the decision that follows it, which the rate limit puts off; the decision is measured
apart: the question (`view`), and `Decided` with the operations that go out.
"""

from __future__ import annotations

from typing import Any

from bench.floor import Floor
from bench.kernels import use_fastest
from bench.report import Printer, measured
from bench.timing import Stopwatch
from levada.core.commands import Command
from levada.core.events import Event, JobsSubmitted, Released, Running

JOBS, GPUS = 6_000, 10_000
LIMIT_US = 1_000.0


def run(printer: Printer, *, quick: bool) -> None:
    """Measures each kind of event, under a policy that decides after events."""
    kernels = use_fastest()
    printer.title(f"One event with {JOBS:,} jobs on {GPUS:,} GPUs, CPU time, {kernels} kernels")
    for what, seconds in _times("elastic-fifo", 40 if quick else 400).items():
        limit = None if what.startswith("decision") else LIMIT_US
        known: dict[str, Any] = {"bench": "events", "kernels": kernels, "jobs": JOBS, "gpus": GPUS}
        printer.add(measured(seconds, what=what, unit="µs", limit=limit, **known))


def _times(policy: str, rounds: int) -> dict[str, list[float]]:
    """Seconds by kind of event, and by part of a decision."""
    floor = Floor(policy, JOBS, GPUS)
    floor.fill()
    for _ in range(3):
        floor.step()
    times: dict[str, list[float]] = {}

    def happen(what: str, event: Event) -> list[Command]:
        watch = Stopwatch()
        commands = watch.add(what, floor.happen, event)
        times.setdefault(what, []).append(watch.seconds[what])
        return commands

    def acknowledge(commands: list[Command]) -> None:
        """Reports job by job, as a live backend does."""
        while commands:
            reports = [one for command in commands for told in floor.reports(command) for one in _singles(told)]
            commands = [more for one in reports for more in happen(f"ack ({type(one).__name__})", one)]

    for _ in range(rounds):
        happen("submit", JobsSubmitted(at=floor.now, jobs=floor.new_jobs(1)))
        happen("progress", floor.progress(floor.running()[:1]))
        acknowledge(happen("finish", floor.finish(1)))
        parts, commands = floor.decision()
        for name, seconds in parts.items():
            times.setdefault(f"decision: {name}", []).append(seconds)
        acknowledge(commands)
    return times


def _singles(event: Event) -> list[Event]:
    """The report as one event per job."""
    if not isinstance(event, Running | Released):
        return [event]
    kind = type(event)
    return [
        kind(at=event.at, number=event.number[[row]], generation=event.generation[[row]])
        for row in range(len(event.number))
    ]
