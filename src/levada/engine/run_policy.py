"""Run a policy: the shell's part of a decision, without its clock."""

from __future__ import annotations

from levada.core.commands import Decide
from levada.core.events import Decided, DecideFailed


def run_policy(decide: Decide, at: float, took_s: float = 0.0) -> Decided | DecideFailed:
    """The decision as an event; an exception of the policy becomes `DecideFailed`.

    The simulator calls it inline. The server calls it in a thread with a detached snapshot and measures *took_s*.
    """
    try:
        decision, state = decide.policy.decide(decide.snapshot, decide.perf, decide.state)
    except (Exception, SystemExit) as error:
        return DecideFailed(at=at, revision=decide.revision, why=f"{type(error).__name__}: {error}")
    return Decided(at=at, revision=decide.revision, decision=decision, state=state, took_s=took_s)
