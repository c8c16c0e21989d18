"""Checks of the ledger: pure functions of the workers' facts, the plans and the server's final job list.

A fact is a line written by `worker.py`. The server does not write it, so it is independent evidence.
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
#: Jobs of these kinds report their steps to the server.
COUNTED = ("elastic", "lease", "careless")
#: Jobs of these kinds resume from a checkpoint.
_SAVING = ("saves", "messy", *COUNTED)


class JobPlan:
    """The submitted job, the requests and faults that affected it, and so its possible ends."""

    def __init__(self, name: str, kind: str, steps: int, code: int, retries: int) -> None:
        self.name, self.kind, self.steps, self.code, self.retries = name, kind, steps, code, retries
        #: Set when the submission is acknowledged.
        self.id = ""
        #: The server rejected the submission.
        self.rejected = False
        #: A cancel was sent; it was acknowledged.
        self.cancelling = self.cancelled = False
        self.suspended = False
        #: Number of requests to stop or resize it, also failed ones.
        self.changes = 0
        #: Names of its workers that were killed, or whose shim was killed.
        self.killed: list[str] = []
        #: One of its workers was killed or frozen.
        self.disturbed = False
        #: When the server first showed its end.
        self.over_at = float("inf")


def read(folder: Path) -> list[dict[str, Any]]:
    """All facts by job, in the order of their appends, without partial lines of killed workers."""
    facts = []
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):
                facts.append(json.loads(line))
    return facts


def faults_of(facts: Sequence[Fact], plans: Sequence[JobPlan], jobs: Sequence[Mapping[str, Any]]) -> list[str]:
    """All contradictions after every job ended."""
    shown = {job["id"]: job for job in jobs}
    of_job: dict[str, list[Fact]] = {}
    for fact in facts:
        of_job.setdefault(fact["job"], []).append(fact)
    faults = [f"{job} has run, and the server does not know it" for job in sorted(of_job.keys() - shown.keys())]
    faults += submissions(plans, jobs)
    for plan in plans:
        if plan.id in shown:
            own_facts = of_job.get(plan.id, [])
            faults += conflicts(own_facts) + duplicate_starts(own_facts) + starts_after_end(own_facts, plan)
            faults += final_phase(own_facts, plan, shown[plan.id]) + steps(own_facts, plan, shown[plan.id])
    return faults


def submissions(plans: Sequence[JobPlan], jobs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Acknowledged submissions that are not listed once, rejected ones that are listed, and unknown jobs."""
    names = Counter(job["workload"] for job in jobs)
    ids = {job["id"] for job in jobs}
    faults = []
    for plan in plans:
        listed = names.pop(plan.name, 0)
        if plan.id and plan.id not in ids:
            faults.append(f"{plan.id} was acknowledged and is lost")
        if plan.rejected and listed:
            faults.append(f"{plan.name} was rejected and is listed")
        if listed > 1:
            faults.append(f"{plan.name} was submitted once and is listed {listed} times")
    return faults + [f"unknown job {name}" for name in sorted(names)]


def conflicts(facts: Sequence[Fact]) -> list[str]:
    """Workers that found another worker on their device, or of another generation of their job."""
    return [
        f"{fact['job']} {fact['worker']} conflicts with another worker: {fact['what']}"
        for fact in facts
        if fact["type"] == "conflict"
    ]


def duplicate_starts(facts: Sequence[Fact]) -> list[str]:
    """Workers that started more than once."""
    starts = Counter((fact["job"], fact["worker"]) for fact in facts if fact["type"] == "start")
    return [f"{job} {worker} started {count} times" for (job, worker), count in starts.items() if count > 1]


def starts_after_end(facts: Sequence[Fact], plan: JobPlan) -> list[str]:
    """Workers that started after the work was complete, or after the server showed the end of the job."""
    faults = [
        f"{fact['job']} was over and {fact['worker']} started"
        for fact in facts
        if fact["type"] == "start" and fact["at"] > plan.over_at
    ]
    if plan.kind == "elastic":
        return faults  # new workers may be starting while the others end
    done = dict(_complete_generations(facts, plan))
    for at, fact in enumerate(facts):
        if fact["type"] == "start":
            faults += [
                f"{fact['job']} was complete in {name} and {fact['worker']} started" for name in done if done[name] < at
            ]
    return faults


def _complete_generations(facts: Sequence[Fact], plan: JobPlan) -> Iterator[tuple[str, int]]:
    """Generations whose workers all succeeded, without a kill or stop, and the index of the last end."""
    sizes = {_generation(fact): fact["size"] for fact in facts if fact["type"] == "start"}
    for generation, size in sizes.items():
        ends = [at for at, fact in enumerate(facts) if fact["type"] == "end" and _generation(fact) == generation]
        succeeded = len(ends) == size and all(facts[at]["code"] == 0 for at in ends)
        stopped = any(fact["type"] == "sigterm" and _generation(fact) == generation for fact in facts)
        if succeeded and not stopped and not any(name.startswith(generation + "-") for name in plan.killed):
            yield generation, ends[-1]


def _generation(fact: Fact) -> str:
    return str(fact["worker"]).partition("-")[0]


def final_phase(facts: Sequence[Fact], plan: JobPlan, job: Mapping[str, Any]) -> list[str]:
    """Contradictions between the phase that the server shows and the facts."""
    phase, code = job["phase"], job["exit_code"]
    codes = [fact["code"] for fact in facts if fact["type"] == "end"]
    # A job that does its last step before the cancel reaches it succeeds.
    if plan.cancelled and phase not in ("Cancelled", "Succeeded", "Failed"):
        return [f"{plan.id} was cancelled and is {phase}"]
    if phase == "Cancelled":
        return [] if plan.cancelling else [f"{plan.id} is Cancelled without a request"]
    if phase == "Succeeded":
        succeeded = plan.code == 0 and code == 0 and 0 in codes
        return (
            []
            if succeeded
            else [f"{plan.id} Succeeded with {code}, expected {plan.code}; its workers ended with {codes}"]
        )
    if phase != "Failed":
        return [f"{plan.id} never ended: {phase}, {job['reason']}"]
    if plan.code and code == plan.code and plan.code in codes:
        return _wrong_retries(facts, plan)
    if len(plan.killed) > plan.retries or (plan.killed and plan.code):
        return [] if code in (None, 128 + signal.SIGKILL) else [f"{plan.id} was killed and exited with {code}"]
    return [f"{plan.id} Failed with {code} after {len(plan.killed)} kills, expected {plan.code}: {job['reason']}"]


def _wrong_retries(facts: Sequence[Fact], plan: JobPlan) -> list[str]:
    """A failed job with unused retries, or that ran again after its last one.

    Kills are failures, too. A failure may not count if it is concurrent with a stop by a user, or if another worker of its
    generation was stopped; a worker without an end may have been stopped before it could record that.
    """
    ends = Counter(_generation(fact) for fact in facts if fact["type"] == "end")
    sizes = {_generation(fact): fact["size"] for fact in facts if fact["type"] == "start"}
    stopped = {_generation(fact) for fact in facts if fact["type"] == "sigterm"}
    certain = [name for name, count in ends.items() if count >= sizes.get(name, 1) and name not in stopped]
    least = 0 if plan.killed else plan.retries + 1
    correct = least <= len(ends) and len(certain) <= plan.retries + 1 + plan.changes
    return [] if correct else [f"{plan.id} failed {len(ends)} times, with {plan.retries} retries"]


def steps(facts: Sequence[Fact], plan: JobPlan, job: Mapping[str, Any]) -> list[str]:
    """Steps that were counted twice, skipped, or lost after a checkpoint."""
    faults = [
        f"{plan.id} {fact['worker']} counts step {fact['step']} and its state has {fact['state']}"
        for fact in facts
        if fact["type"] == "miscount"
    ]
    if plan.kind not in _SAVING:
        return faults
    done, saved, newest = 0, 0, 0
    for fact in facts:
        if fact["type"] not in ("resume", "step", "saved") or fact["generation"] < newest:
            continue  # a late fact of a worker of an older generation
        newest = fact["generation"]
        match fact["type"]:
            case "resume":
                # A worker may be killed between a step and its fact.
                if not saved <= fact["step"] <= done + 1:
                    faults.append(f"{plan.id} {fact['worker']} resumes at {fact['step']}; done {done}, saved {saved}")
                done = fact["step"]
            case "step":
                if fact["step"] != done + 1:
                    faults.append(f"{plan.id} {fact['worker']} does step {fact['step']} after {done}")
                done = fact["step"]
            case _:
                saved = max(saved, fact["step"])
    if job["phase"] == "Succeeded":
        if done != plan.steps and not (plan.disturbed and done == plan.steps - 1):
            faults.append(f"{plan.id} Succeeded after {done} of {plan.steps} steps")
        if plan.kind in COUNTED and job["progress"]["step"] != plan.steps:
            faults.append(f"{plan.id} shows {job['progress']['step']} of {plan.steps} steps")
    return faults
