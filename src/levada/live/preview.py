"""What another policy would do to the jobs that run: its first decision on a copy of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from levada.core import events as ev
from levada.core.commands import Command, Decide, Wake
from levada.core.job import Preemptible
from levada.engine import Engine, answer

#: A policy that decides on a grid is asked when its time comes; other timers may ring before.
_MOST_TICKS = 20
_MOST_NAMED = 5


class Cut(NamedTuple):
    """A running job that loses workers."""

    job: str
    workers: int
    #: 0 = it is stopped.
    left: int
    #: It is spared until it has saved something.
    once_saved: bool = False


def cuts(twin: Engine, now: float, policy: str, options: Mapping[str, Any]) -> list[Cut]:
    """Running jobs that *policy* would stop or shrink, once they are no longer spared for having just started.

    *twin* is a fork of the engine, and is used up. Jobs that may not be stopped stay as they are, as they would. Those
    that are spared only until their first checkpoint are looked at a second time, as if they had saved.
    """
    saved, jobs = twin.fork(), twin.query.jobs
    unsaved = twin.query.protected()
    unsaved = unsaved[jobs.preemptible[unsaved] == Preemptible.AUTO]
    numbers, generations = jobs.number[unsaved], jobs.generation[unsaved]
    waiting = {twin.query.job_id(number) for number in numbers.tolist()}
    found = _first_cuts(twin, now, policy, options)
    if waiting:
        save = ev.CheckpointSaved(at=now, number=numbers, generation=generations)
        later = _first_cuts(saved, now, policy, options, save)
        found += [cut._replace(once_saved=True) for cut in later if cut.job in waiting]
    return found


def _first_cuts(twin: Engine, now: float, policy: str, options: Mapping[str, Any], *first: ev.Event) -> list[Cut]:
    """What the first decision after *first* takes from running jobs."""
    twin.assume(rate_limit_s=0.0, min_run_s=0.0, cooldown_s=0.0, payback=0.0)
    before = _targets(twin, twin.query.holders())
    question = _question(twin, twin.handle(*first, ev.PolicyChanged(at=now, name=policy, options=options)))
    if question is None:
        return []
    twin.handle(answer(question, twin.query.now))
    after = _targets(twin, list(before))
    found = [Cut(job, workers, after.get(job, 0)) for job, workers in before.items()]
    return [cut for cut in found if cut.left < cut.workers]


def _targets(engine: Engine, jobs: list[str]) -> dict[str, int]:
    """How many workers those of these jobs that are active should have."""
    return {job: found.count for job in jobs if (found := engine.query.job(job)) is not None}


def _question(twin: Engine, commands: list[Command]) -> Decide | None:
    """What the policy is asked first, at whatever time that is."""
    for _ in range(_MOST_TICKS):
        asked = [command for command in commands if isinstance(command, Decide)]
        if asked:
            return asked[0]
        wakes = [command.at for command in commands if isinstance(command, Wake)]
        if not wakes or wakes[-1] == float("inf"):
            return None
        commands = twin.handle(ev.Tick(at=wakes[-1]))
    return None


def warning(policy: str, found: list[Cut], running: int) -> str:
    """One sentence about jobs that a policy cuts."""
    stopped = [cut for cut in found if not cut.left]
    shrunk = len(found) - len(stopped)
    parts = [f"stops {len(stopped)}"] if stopped else []
    parts += [f"shrinks {shrunk}"] if shrunk else []
    named = [
        f"{cut.job} ({cut.workers} to {cut.left} worker{'' if cut.left == 1 else 's'}"
        f"{', after its first checkpoint' if cut.once_saved else ''})"
        for cut in found[:_MOST_NAMED]
    ]
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    of = f"{running} running job{'' if running == 1 else 's'}"
    return f"{policy} {' and '.join(parts)} of {of}: {', '.join(named)}{more}."
