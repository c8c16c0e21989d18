"""Settings of the engine; policies have their own."""

from __future__ import annotations

import msgspec

#: Upper bound of `rate_limit_s`.
_LONGEST_RATE_LIMIT_S = 86_400.0


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings, with times in seconds. Raises ValueError for unusable values."""

    #: Minimum time between two decisions.
    rate_limit_s: float = 1.0
    #: Time after its start in which a job is not changed; `guards` has the exception for cheap resizes.
    min_run_s: float = 60.0
    #: Time after a resize or move in which a job is not changed again.
    cooldown_s: float = 30.0
    #: A job that will end within this multiple of its restart cost is not changed.
    payback: float = 2.0
    #: A policy that takes longer than this counts as failed.
    decide_limit_s: float = 10.0
    #: An operation without an acknowledgement counts as lost after this time.
    op_timeout_s: float = 300.0
    #: Backoff before the first retry; it doubles each time, up to the maximum.
    backoff_s: float = 5.0
    backoff_max_s: float = 300.0
    #: A job is set aside after this many failures in a row.
    max_failures: int = 5
    #: A plain FIFO fill takes over after this many rejected decisions in a row.
    max_rejections: int = 3
    #: How long room for a serving pod is reserved.
    reservation_s: float = 60.0
    #: The backend can only remove the workers with the highest indices.
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
