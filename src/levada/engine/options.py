"""The engine's own settings; policies have theirs."""

from __future__ import annotations

import msgspec

#: Decisions are never further apart: an engine that does not decide is of no use.
_LONGEST_RATE_LIMIT_S = 86_400.0


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times in seconds. Raises ValueError for values with which nothing could ever run."""

    #: Decisions are at least so far apart; what happens meanwhile waits for the next one.
    rate_limit_s: float = 1.0
    #: A job that has just started is left alone for so long; see `guards` for those that resize at no cost.
    min_run_s: float = 60.0
    #: And so long after a resize or move.
    cooldown_s: float = 30.0
    #: A job that would end before so many restart costs have passed is left alone.
    payback: float = 2.0
    #: Whoever asks a policy off the loop waits no longer for its answer, and tells that it failed.
    decide_limit_s: float = 10.0
    #: An operation without any word is taken for lost.
    op_timeout_s: float = 300.0
    #: Pause before the first retry; it doubles each time, up to the maximum.
    backoff_s: float = 5.0
    backoff_max_s: float = 300.0
    #: After so many failures in a row a job is set aside.
    max_failures: int = 5
    #: After so many rejected decisions in a row a plain FIFO fill takes over.
    max_rejections: int = 3
    #: Room made for a serving pod is kept so long.
    reservation_s: float = 60.0
    #: The backend can only take away the workers with the highest indices.
    highest_first: bool = False
    #: Workers that defragmentation may move per decision; 0 = never.
    move_budget: int = 0

    def __post_init__(self) -> None:
        for name in ("rate_limit_s", "min_run_s", "cooldown_s", "payback", "backoff_s", "backoff_max_s", "move_budget"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be a number, 0 or more")
        for name in ("decide_limit_s", "op_timeout_s", "reservation_s", "max_failures", "max_rejections"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0")
        if self.rate_limit_s > _LONGEST_RATE_LIMIT_S:
            raise ValueError(f"rate_limit_s must be at most {_LONGEST_RATE_LIMIT_S:.0f}")
