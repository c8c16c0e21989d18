"""Preview a policy change: running jobs that it first stops or shrinks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from levada.core import events as ev
from levada.core.commands import Command, Decide, Wake
from levada.core.job import Preemptible
from levada.engine import Engine, run_policy

#: Timers that are fired until the policy is asked: one with fixed rounds is not asked at once.
_MAX_TICKS = 20
_MAX_NAMED = 5


class ShrunkJob(NamedTuple):
    """A running job that loses some or all of its workers."""

    job: str
    workers: int
    #: Workers after the decision; 0 = stopped.
    left: int
    #: Protected until its first checkpoint.
    once_saved: bool = False


def shrunk_jobs(twin: Engine, now: float, policy: str, options: Mapping[str, Any]) -> list[ShrunkJob]:
    """Return running jobs that *policy* stops or shrinks, ignoring the protection of recently started jobs.

    *twin* is a fork of the engine, which the preview consumes. Non-preemptible jobs keep their workers. Jobs that are
    protected until their first checkpoint are previewed a second time, as if they had saved one.
    """
    saved, jobs = twin.fork(), twin.query.jobs
    unsaved = twin.query.protected()
    unsaved = unsaved[jobs.preemptible[unsaved] == Preemptible.AUTO]
    numbers, generations = jobs.number[unsaved], jobs.generation[unsaved]
    protected = {twin.query.job_id(number) for number in numbers.tolist()}
    affected = _first_shrunk(twin, now, policy, options)
    if protected:
        save = ev.CheckpointSaved(at=now, number=numbers, generation=generations)
        later = _first_shrunk(saved, now, policy, options, save)
        affected += [shrunk._replace(once_saved=True) for shrunk in later if shrunk.job in protected]
    return affected


def _first_shrunk(
    twin: Engine, now: float, policy: str, options: Mapping[str, Any], *first: ev.Event
) -> list[ShrunkJob]:
    """Return what the first decision after the events *first* takes from running jobs."""
    twin.assume(rate_limit_s=0.0, min_run_s=0.0, cooldown_s=0.0, payback=0.0)
    before = _targets(twin, twin.query.holders())
    question = _question(twin, twin.handle(*first, ev.PolicyChanged(at=now, name=policy, options=options)))
    if question is None:
        return []
    twin.handle(run_policy(question, twin.query.now))
    after = _targets(twin, list(before))
    jobs = [ShrunkJob(job, workers, after.get(job, 0)) for job, workers in before.items()]
    return [shrunk for shrunk in jobs if shrunk.left < shrunk.workers]


def _targets(engine: Engine, jobs: list[str]) -> dict[str, int]:
    """Return the target number of workers of these jobs, without ended ones."""
    return {job_id: job.count for job_id in jobs if (job := engine.query.job(job_id)) is not None}


def _question(twin: Engine, commands: list[Command]) -> Decide | None:
    """Return the first question to the policy, firing timers until it comes."""
    for _ in range(_MAX_TICKS):
        questions = [command for command in commands if isinstance(command, Decide)]
        if questions:
            return questions[0]
        wakes = [command.at for command in commands if isinstance(command, Wake)]
        if not wakes or wakes[-1] == float("inf"):
            return None
        commands = twin.handle(ev.Tick(at=wakes[-1]))
    return None


def warning(policy: str, affected: list[ShrunkJob], running: int) -> str:
    """Describe in one sentence the jobs that a policy stops or shrinks."""
    stopped = [shrunk for shrunk in affected if not shrunk.left]
    others = len(affected) - len(stopped)
    parts = [f"stops {len(stopped)}"] if stopped else []
    parts += [f"shrinks {others}"] if others else []
    named = [
        f"{shrunk.job} ({shrunk.workers} to {shrunk.left} worker{'' if shrunk.left == 1 else 's'}"
        f"{', after its first checkpoint' if shrunk.once_saved else ''})"
        for shrunk in affected[:_MAX_NAMED]
    ]
    more = f" and {len(affected) - _MAX_NAMED} more" if len(affected) > _MAX_NAMED else ""
    of = f"{running} running job{'' if running == 1 else 's'}"
    return f"{policy} {' and '.join(parts)} of {of}: {', '.join(named)}{more}."
