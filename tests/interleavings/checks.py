"""Checks of the ledger of simulated processes: pure functions that hold for every order."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Protocol

from tests.interleavings.processes import ProcessFact

#: Time limit of the start of a worker.
_JOINING_S = 10.0


class Submitted(Protocol):
    """A submitted job as its client knows it."""

    id: str
    name: str
    code: int
    variant: str
    retries: int
    cancelled: bool
    #: Number of suspensions by its client, also failed ones.
    suspensions: int


def faults_of(
    ledger: Sequence[ProcessFact], jobs: Sequence[Mapping[str, Any]], plans: Iterable[Submitted]
) -> list[str]:
    """Duplicate starts, starts after the end, concurrent generations, and wrong final phases."""
    plans = list(plans)
    elastic = {plan.id for plan in plans if plan.variant == "elastic"}
    faults = duplicate_starts(ledger) + starts_after_end(ledger, elastic)
    faults += concurrent_generations([fact for fact in ledger if fact.job not in elastic])
    shown = {job["id"]: job for job in jobs}
    for plan in plans:
        if plan.id not in shown:
            faults.append(f"{plan.id or plan.name} was acknowledged and is lost")
        else:
            faults += wrong_final_phase(ledger, shown.pop(plan.id), plan)
    return faults + [f"unknown job {job}" for job in shown]


def duplicate_starts(ledger: Sequence[ProcessFact]) -> list[str]:
    """Workers that started more than once."""
    starts = [(fact.job, fact.worker) for fact in ledger if fact.what == "start"]
    return [
        f"{job} {worker} started {starts.count((job, worker))} times"
        for job, worker in sorted(set(starts))
        if starts.count((job, worker)) > 1
    ]


def starts_after_end(ledger: Sequence[ProcessFact], elastic: Container[str] = ()) -> list[str]:
    """Workers that started after all workers of a generation of their job had succeeded without a stop.

    One success of an *elastic* job completes it; other workers may still be starting for `_JOINING_S`.
    """
    faults: list[str] = []
    done: dict[str, float] = {}
    left: dict[tuple[str, str], int] = {}
    for fact in ledger:
        generation = fact.job, fact.worker.partition("-")[0]
        if fact.what == "start":
            left.setdefault(generation, fact.size)
            late_s = fact.at - done.get(fact.job, fact.at)
            if fact.job in done and (fact.job not in elastic or late_s > _JOINING_S):
                faults.append(f"{fact.job} was complete and {fact.worker} started")
        elif fact.code == 0 and not fact.asked:
            left[generation] -= 1
            if left[generation] == 0 or fact.job in elastic:
                done.setdefault(fact.job, fact.at)
    return faults


def concurrent_generations(ledger: Sequence[ProcessFact]) -> list[str]:
    """Workers that started while workers of another generation of their job ran."""
    faults: list[str] = []
    alive: dict[str, set[str]] = {}
    for fact in ledger:
        running = alive.setdefault(fact.job, set())
        if fact.what == "start":
            faults += [
                f"{fact.job} {fact.worker} started beside {other}"
                for other in sorted(running)
                if other.partition("-")[0] != fact.worker.partition("-")[0]
            ]
            running.add(fact.worker)
        else:
            running.discard(fact.worker)
    return faults


def wrong_final_phase(ledger: Sequence[ProcessFact], job: Mapping[str, Any], plan: Submitted) -> list[str]:
    """Contradictions between the final phase of a job and the ledger."""
    ends = [fact for fact in ledger if fact.job == job["id"] and fact.what == "end"]
    phase, code = job["phase"], job["exit_code"]
    if phase == "Cancelled":
        return [] if plan.cancelled else [f"{job['id']} is Cancelled without a request"]
    if phase == "Succeeded":
        succeeded = plan.code == 0 and code == 0 and any(fact.code == 0 for fact in ends)
        return (
            [] if succeeded else [f"{job['id']} Succeeded with {code}; its workers ended with {[f.code for f in ends]}"]
        )
    if phase == "Failed":
        if not plan.code or code != plan.code:
            return [f"{job['id']} Failed with {code}: {job['reason']}"]
        return wrong_retries(ends, plan)
    return [f"{job['id']} never ended: {phase}, {job['reason']}"]


def wrong_retries(ends: Sequence[ProcessFact], plan: Submitted) -> list[str]:
    """A failed job with unused retries, or that ran again after its last one.

    The loss of a killed worker is a failure, too. A failure may not count if another worker of its generation was
    stopped, which may be its cause, or if it is concurrent with a suspension.
    """
    failed = {fact.worker.partition("-")[0] for fact in ends if fact.code == plan.code and not fact.asked}
    killed = {fact.worker.partition("-")[0] for fact in ends if fact.code in (None, -9) and not fact.asked}
    stopped = {fact.worker.partition("-")[0] for fact in ends if fact.asked}
    least, most = plan.retries + 1 - len(killed), plan.retries + 1 + plan.suspensions
    correct = least <= len(failed) and len(failed - stopped) <= most
    return [] if correct else [f"{plan.id} failed {len(failed)} times, with {plan.retries} retries"]
