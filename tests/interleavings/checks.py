"""What the ledger of the processes must show, whatever the order was. Pure functions, tested by themselves."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Protocol

from tests.interleavings.processes import Fact

#: A worker that was told to start is up within so long.
_JOINING_S = 10.0


class Submitted(Protocol):
    """A job as its client knows it."""

    id: str
    name: str
    code: int
    manner: str
    retries: int
    cancelled: bool
    #: How often its client suspended it, or tried to.
    suspensions: int


def faults_of(ledger: Sequence[Fact], jobs: Sequence[Mapping[str, Any]], plans: Iterable[Submitted]) -> list[str]:
    """All that must not be: doubled starts, starts after the end, two generations at once, untrue ends."""
    plans = list(plans)
    elastic = {plan.id for plan in plans if plan.manner == "elastic"}
    found = doubled(ledger) + after_the_end(ledger, elastic)
    found += overlapping([fact for fact in ledger if fact.job not in elastic])
    shown = {job["id"]: job for job in jobs}
    for plan in plans:
        if plan.id not in shown:
            found.append(f"{plan.id or plan.name} was acknowledged and is lost")
        else:
            found += untrue(ledger, shown.pop(plan.id), plan)
    return found + [f"nobody submitted {job}" for job in shown]


def doubled(ledger: Sequence[Fact]) -> list[str]:
    """Workers that started more than once."""
    starts = [(fact.job, fact.worker) for fact in ledger if fact.what == "start"]
    return [
        f"{job} {worker} started {starts.count((job, worker))} times"
        for job, worker in sorted(set(starts))
        if starts.count((job, worker)) > 1
    ]


def after_the_end(ledger: Sequence[Fact], elastic: Container[str] = ()) -> list[str]:
    """Workers that started after all workers of a generation of their job had ended well, unasked.

    Of an *elastic* job one that ends well speaks for all; others may be on their way up to join it for a while.
    """
    found: list[str] = []
    done: dict[str, float] = {}
    left: dict[tuple[str, str], int] = {}
    for fact in ledger:
        generation = fact.job, fact.worker.partition("-")[0]
        if fact.what == "start":
            left.setdefault(generation, fact.size)
            late_s = fact.at - done.get(fact.job, fact.at)
            if fact.job in done and (fact.job not in elastic or late_s > _JOINING_S):
                found.append(f"{fact.job} was done and {fact.worker} started")
        elif fact.code == 0 and not fact.asked:
            left[generation] -= 1
            if left[generation] == 0 or fact.job in elastic:
                done.setdefault(fact.job, fact.at)
    return found


def overlapping(ledger: Sequence[Fact]) -> list[str]:
    """Workers that started while those of another generation of their job ran."""
    found: list[str] = []
    alive: dict[str, set[str]] = {}
    for fact in ledger:
        there = alive.setdefault(fact.job, set())
        if fact.what == "start":
            found += [
                f"{fact.job} {fact.worker} started beside {other}"
                for other in sorted(there)
                if other.partition("-")[0] != fact.worker.partition("-")[0]
            ]
            there.add(fact.worker)
        else:
            there.discard(fact.worker)
    return found


def untrue(ledger: Sequence[Fact], job: Mapping[str, Any], plan: Submitted) -> list[str]:
    """What is shown of a job that is over, and is not so."""
    ends = [fact for fact in ledger if fact.job == job["id"] and fact.what == "end"]
    phase, code = job["phase"], job["exit_code"]
    if phase == "Cancelled":
        return [] if plan.cancelled else [f"{job['id']} is Cancelled, and nobody asked"]
    if phase == "Succeeded":
        well = plan.code == 0 and code == 0 and any(fact.code == 0 for fact in ends)
        return [] if well else [f"{job['id']} Succeeded with {code}; its workers ended with {[f.code for f in ends]}"]
    if phase == "Failed":
        if not plan.code or code != plan.code:
            return [f"{job['id']} Failed with {code}: {job['reason']}"]
        return miscounted(ends, plan)
    return [f"{job['id']} never ended: {phase}, {job['reason']}"]


def miscounted(ends: Sequence[Fact], plan: Submitted) -> list[str]:
    """A job that has failed and did not use its retries up, or ran again after it had.

    The loss of a killed worker is a failure, too. A failure may not count where another worker of its generation was
    asked to leave, whose end may be its cause, or where it crosses with a suspension.
    """
    failed = {fact.worker.partition("-")[0] for fact in ends if fact.code == plan.code and not fact.asked}
    killed = {fact.worker.partition("-")[0] for fact in ends if fact.code in (None, -9) and not fact.asked}
    asked = {fact.worker.partition("-")[0] for fact in ends if fact.asked}
    least, most = plan.retries + 1 - len(killed), plan.retries + 1 + plan.suspensions
    right = least <= len(failed) and len(failed - asked) <= most
    return [] if right else [f"{plan.id} failed {len(failed)} times, with {plan.retries} retries"]
