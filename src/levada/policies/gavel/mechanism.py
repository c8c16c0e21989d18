"""Which mechanism turns a share policy's fractions of time into sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from levada.errors import BadInput
from levada.policies.gavel.share import AnySharePolicy
from levada.policies.options import number_above
from levada.policies.rounds import Rounds

#: Shorter rounds would decide without end.
SHORTEST_ROUND_S = 0.001


def in_rounds(
    make_policy: Callable[..., AnySharePolicy], options: Mapping[str, Any], preferred: Mapping[str, Any]
) -> Any:
    """The share policy with its own options, in the mechanism that the others name; raises BadInput.

    *preferred* are options for the default mechanism that hold unless they are given.
    """
    own = dict(options)
    round_s = number_above("round_s", own.pop("round_s", 360.0), SHORTEST_ROUND_S)
    mechanism = own.pop("mechanism", "default")
    global_queue = own.pop("global_queue", False)
    if mechanism not in ("default", "gavel"):
        raise BadInput.one(f"must be default or gavel, not {mechanism!r}", "options.mechanism")
    if mechanism == "gavel":
        from levada.policies.gavel.published import Published

        return Published(make_policy(**own), round_s=round_s, global_queue=bool(global_queue))
    return Rounds(make_policy(**{**preferred, **own}), round_s=round_s)
