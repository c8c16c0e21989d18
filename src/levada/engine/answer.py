"""Running a policy: the shell's part of a decision, without its clock."""

from __future__ import annotations

from levada.core.commands import Decide
from levada.core.events import Decided, DecideFailed


def answer(decide: Decide, at: float, took_s: float = 0.0) -> Decided | DecideFailed:
    """The policy's answer as an event; a policy that breaks is an event too, never a crash.

    The simulator calls it inline; a live shell calls it off its loop with a detached snapshot and measures *took_s*.
    """
    try:
        decision, state = decide.policy.decide(decide.snapshot, decide.perf, decide.state)
    except (Exception, SystemExit) as broken:
        return DecideFailed(at=at, revision=decide.revision, why=f"{type(broken).__name__}: {broken}")
    return Decided(at=at, revision=decide.revision, decision=decision, state=state, took_s=took_s)
