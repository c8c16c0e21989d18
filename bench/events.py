"""Single events with 6,000 jobs on 10,000 GPUs, and with 5,000 foreign pods on 1,000 nodes, as a live engine gets them.

An event is measured without the following decision, which the rate limit delays. The decision is measured separately:
the request (`view`), and `Decided` with the issued operations.
"""

from __future__ import annotations

from typing import Any

from bench.engine_driver import EngineDriver
from bench.kernels import use_fastest
from bench.report import Printer, measured
from bench.timing import Stopwatch
from levada.core.cluster import Cluster, Foreign, Node
from levada.core.commands import Command
from levada.core.events import Event, ForeignAppeared, ForeignGone, JobsSubmitted, Released, Running
from levada.engine import Engine, Options

JOBS, GPUS = 6_000, 10_000
LIMIT_US = 1_000.0
PODS, NODES = 5_000, 1_000
POD_LIMIT_MS = 0.3


def run(printer: Printer, *, quick: bool) -> None:
    """Measure each type of event under a policy that decides after events."""
    kernels = use_fastest()
    printer.title(f"One event with {JOBS:,} jobs on {GPUS:,} GPUs, CPU time, {kernels} kernels")
    for what, seconds in _times("elastic-fifo", 40 if quick else 400).items():
        limit = None if what.startswith("decision") else LIMIT_US
        fields: dict[str, Any] = {"bench": "events", "kernels": kernels, "jobs": JOBS, "gpus": GPUS}
        printer.add(measured(seconds, what=what, unit="µs", limit=limit, **fields))
    printer.title(f"One event with {PODS:,} foreign pods on {NODES:,} nodes, CPU time, {kernels} kernels")
    for what, seconds in _pod_times(40 if quick else 400).items():
        printer.add(measured(seconds, what=what, limit=POD_LIMIT_MS, bench="events", kernels=kernels, gpus=8 * NODES))


def _pod_times(rounds: int) -> dict[str, list[float]]:
    """Return seconds of one `ForeignAppeared` and one `ForeignGone`, by event."""
    nodes = tuple(Node.of(f"n{i}", {"v100": 8}, cpu=64_000, memory=262_144) for i in range(NODES))
    engine = Engine(cluster=Cluster(nodes=nodes), options=Options(rate_limit_s=3600.0))
    engine.undo_faults = False

    def pod(number: int) -> Foreign:
        gpus = 1000 if number % 5 == 0 else 0
        return Foreign(id=f"pod{number}", node=f"n{number % NODES}", milli=gpus, cpu=500, memory=1024)

    engine.handle(ForeignAppeared(at=0.0, foreign=tuple(pod(i) for i in range(PODS))))
    watch, times = Stopwatch(), {"ForeignAppeared": [0.0] * rounds, "ForeignGone": [0.0] * rounds}
    for i in range(-10, rounds):  # the first ten warm up
        events = ForeignGone(at=1.0, ids=(f"pod{abs(i)}",)), ForeignAppeared(at=1.0, foreign=(pod(abs(i)),))
        for event in events:
            watch.seconds = {}
            watch.add("", engine.handle, event)
            times[type(event).__name__][max(i, 0)] = watch.seconds[""]
    return times


def _times(policy: str, rounds: int) -> dict[str, list[float]]:
    """Return seconds by type of event, and by part of a decision."""
    driver = EngineDriver(policy, JOBS, GPUS)
    driver.fill()
    for _ in range(3):
        driver.step()
    times: dict[str, list[float]] = {}

    def handle(what: str, event: Event) -> list[Command]:
        watch = Stopwatch()
        commands = watch.add(what, driver.handle, event)
        times.setdefault(what, []).append(watch.seconds[what])
        return commands

    def acknowledge(commands: list[Command]) -> None:
        """Report job by job, like a live backend."""
        while commands:
            reports = [
                single for command in commands for event in driver.reports(command) for single in _singles(event)
            ]
            commands = [more for report in reports for more in handle(f"ack ({type(report).__name__})", report)]

    for _ in range(rounds):
        handle("submit", JobsSubmitted(at=driver.now, jobs=driver.new_jobs(1)))
        handle("progress", driver.progress(driver.running()[:1]))
        acknowledge(handle("finish", driver.finish(1)))
        parts, commands = driver.decision()
        for name, seconds in parts.items():
            times.setdefault(f"decision: {name}", []).append(seconds)
        acknowledge(commands)
    return times


def _singles(event: Event) -> list[Event]:
    """Split a report into one event per job."""
    if not isinstance(event, Running | Released):
        return [event]
    kind = type(event)
    return [
        kind(at=event.at, number=event.number[[row]], generation=event.generation[[row]])
        for row in range(len(event.number))
    ]
