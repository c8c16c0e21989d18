"""What the ledger of the workers proves: pure functions of facts, plans and what the server shows in the end.

A fact is a line of `worker.py`. The server has no part in it, so that it cannot be wrong in the same way.
"""

from __future__ import annotations

import contextlib
import json
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Fact = Mapping[str, Any]
OVER = ("Succeeded", "Failed", "Cancelled")
#: Jobs of these kinds tell the server how far they are.
COUNTED = ("elastic", "lease", "careless")
#: Jobs of these kinds go on from what they saved.
_SAVING = ("saves", "messy", *COUNTED)


class Plan:
    """What was asked for one job, what was done to it, and so what may become of it."""

    def __init__(self, name: str, kind: str, steps: int, code: int, retries: int) -> None:
        self.name, self.kind, self.steps, self.code, self.retries = name, kind, steps, code, retries
        #: Once it is acknowledged.
        self.id = ""
        #: The server answered that it does not take it.
        self.refused = False
        #: A cancel was sent; it was answered.
        self.cancelling = self.cancelled = False
        self.suspended = False
        #: How often its users stopped or resized it, or tried to.
        self.changes = 0
        #: Names of its workers that were killed, or whose shims were.
        self.hurt: list[str] = []
        #: A worker of it was killed or frozen.
        self.touched = False
        #: When the server first showed that it is over.
        self.over_at = float("inf")


def read(folder: Path) -> list[dict[str, Any]]:
    """All facts, job by job in the order in which they were appended; what a killed worker wrote in part is left out."""
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
    return found


def faults_of(facts: Sequence[Fact], plans: Sequence[Plan], jobs: Sequence[Mapping[str, Any]]) -> list[str]:
    """All that does not add up once every job is over."""
    shown = {job["id"]: job for job in jobs}
    of_job: dict[str, list[Fact]] = {}
    for fact in facts:
        of_job.setdefault(fact["job"], []).append(fact)
    found = [f"{job} has run, and the server does not know it" for job in sorted(of_job.keys() - shown.keys())]
    found += submissions(plans, jobs)
    for plan in plans:
        if plan.id in shown:
            mine = of_job.get(plan.id, [])
            found += clashes(mine) + doubled(mine) + after_the_end(mine, plan)
            found += end(mine, plan, shown[plan.id]) + steps(mine, plan, shown[plan.id])
    return found


def submissions(plans: Sequence[Plan], jobs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was acknowledged is there once, what was refused is not, and there is nothing else."""
    names = Counter(job["workload"] for job in jobs)
    ids = {job["id"] for job in jobs}
    found = []
    for plan in plans:
        there = names.pop(plan.name, 0)
        if plan.id and plan.id not in ids:
            found.append(f"{plan.id} was acknowledged and is lost")
        if plan.refused and there:
            found.append(f"{plan.name} was refused and is there")
        if there > 1:
            found.append(f"{plan.name} was submitted once and is there {there} times")
    return found + [f"nobody submitted {name}" for name in sorted(names)]


def clashes(facts: Sequence[Fact]) -> list[str]:
    """Workers that met another one on a device, or of another generation of their job."""
    return [
        f"{fact['job']} {fact['worker']} met another one: {fact['what']}" for fact in facts if fact["type"] == "clash"
    ]


def doubled(facts: Sequence[Fact]) -> list[str]:
    """Workers that started more than once."""
    starts = Counter((fact["job"], fact["worker"]) for fact in facts if fact["type"] == "start")
    return [f"{job} {worker} started {count} times" for (job, worker), count in starts.items() if count > 1]


def after_the_end(facts: Sequence[Fact], plan: Plan) -> list[str]:
    """Workers that started although all was done, or after the server had said that the job is over."""
    found = [
        f"{fact['job']} was over and {fact['worker']} started"
        for fact in facts
        if fact["type"] == "start" and fact["at"] > plan.over_at
    ]
    if plan.kind == "elastic":
        return found  # newcomers may be on their way up while the others end
    done = dict(_done(facts, plan))
    for at, fact in enumerate(facts):
        if fact["type"] == "start":
            found += [
                f"{fact['job']} was done in {name} and {fact['worker']} started" for name in done if done[name] < at
            ]
    return found


def _done(facts: Sequence[Fact], plan: Plan) -> Iterator[tuple[str, int]]:
    """Generations of which all workers ended well, none of them killed or asked to leave, and where the last end is."""
    sizes = {_generation(fact): fact["size"] for fact in facts if fact["type"] == "start"}
    for generation, size in sizes.items():
        ends = [at for at, fact in enumerate(facts) if fact["type"] == "end" and _generation(fact) == generation]
        well = len(ends) == size and all(facts[at]["code"] == 0 for at in ends)
        asked = any(fact["type"] == "asked" and _generation(fact) == generation for fact in facts)
        if well and not asked and not any(name.startswith(generation + "-") for name in plan.hurt):
            yield generation, ends[-1]


def _generation(fact: Fact) -> str:
    return str(fact["worker"]).partition("-")[0]


def end(facts: Sequence[Fact], plan: Plan, job: Mapping[str, Any]) -> list[str]:
    """What the server says of the end of a job, and is not so."""
    phase, code = job["phase"], job["exit_code"]
    codes = [fact["code"] for fact in facts if fact["type"] == "end"]
    # One that does its last step before it hears of it has succeeded all the same.
    if plan.cancelled and phase not in ("Cancelled", "Succeeded", "Failed"):
        return [f"{plan.id} was cancelled and is {phase}"]
    if phase == "Cancelled":
        return [] if plan.cancelling else [f"{plan.id} is Cancelled, and nobody asked"]
    if phase == "Succeeded":
        well = plan.code == 0 and code == 0 and 0 in codes
        return [] if well else [f"{plan.id} Succeeded with {code}, meant {plan.code}; its workers ended with {codes}"]
    if phase != "Failed":
        return [f"{plan.id} never ended: {phase}, {job['reason']}"]
    if plan.code and code == plan.code and plan.code in codes:
        return _miscounted(facts, plan)
    if len(plan.hurt) > plan.retries or (plan.hurt and plan.code):
        return [] if code in (None, 128 + signal.SIGKILL) else [f"{plan.id} was killed and left with {code}"]
    return [f"{plan.id} Failed with {code} after {len(plan.hurt)} kills, meant {plan.code}: {job['reason']}"]


def _miscounted(facts: Sequence[Fact], plan: Plan) -> list[str]:
    """A job that has failed and did not use its retries up, or ran again after it had.

    Kills are failures, too. A failure may not count where it crosses with a user's stop, or where another worker of its
    generation was asked to leave: before it could say so, if its own end is missing.
    """
    ends = Counter(_generation(fact) for fact in facts if fact["type"] == "end")
    sizes = {_generation(fact): fact["size"] for fact in facts if fact["type"] == "start"}
    asked = {_generation(fact) for fact in facts if fact["type"] == "asked"}
    sure = [name for name, count in ends.items() if count >= sizes.get(name, 1) and name not in asked]
    least = 0 if plan.hurt else plan.retries + 1
    right = least <= len(ends) and len(sure) <= plan.retries + 1 + plan.changes
    return [] if right else [f"{plan.id} failed {len(ends)} times, with {plan.retries} retries"]


def steps(facts: Sequence[Fact], plan: Plan, job: Mapping[str, Any]) -> list[str]:
    """Steps that were counted twice, left out, or lost although they were saved."""
    found = [
        f"{plan.id} {fact['worker']} counts step {fact['step']} and its state has {fact['state']}"
        for fact in facts
        if fact["type"] == "miscount"
    ]
    if plan.kind not in _SAVING:
        return found
    done, saved, newest = 0, 0, 0
    for fact in facts:
        if fact["type"] not in ("resume", "step", "saved") or fact["generation"] < newest:
            continue  # the late word of a worker that others went on without
        newest = fact["generation"]
        match fact["type"]:
            case "resume":
                # A worker may end between a step and its word.
                if not saved <= fact["step"] <= done + 1:
                    found.append(f"{plan.id} {fact['worker']} resumes at {fact['step']}; done {done}, saved {saved}")
                done = fact["step"]
            case "step":
                if fact["step"] != done + 1:
                    found.append(f"{plan.id} {fact['worker']} does step {fact['step']} after {done}")
                done = fact["step"]
            case _:
                saved = max(saved, fact["step"])
    if job["phase"] == "Succeeded":
        if done != plan.steps and not (plan.touched and done == plan.steps - 1):
            found.append(f"{plan.id} Succeeded after {done} of {plan.steps} steps")
        if plan.kind in COUNTED and job["progress"]["step"] != plan.steps:
            found.append(f"{plan.id} shows {job['progress']['step']} of {plan.steps} steps")
    return found
