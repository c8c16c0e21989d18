"""What a share policy is: fractions of time instead of sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec
import numpy as np

from levada.core.types import Floats, Ints
from levada.perf.model import ThroughputModel
from levada.policies.gavel.instance import Instance
from levada.policies.protocol import Needs

S = TypeVar("S")

_NO_PAIRS = np.zeros((0, 2), np.int64)


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """Per job and GPU type the fraction of time it should run there; then the same for pairs that run together."""

    #: Row i is job i of the snapshot.
    share: Floats
    #: Rows of the two members, the earlier one first.
    pairs: Ints = _NO_PAIRS
    pair_share: Floats | None = None
    #: The policy's objective at these shares; nan where it has none.
    objective: float = float("nan")
    #: What went wrong in solving, for people; the shares are feasible all the same.
    alarm: str = ""


class SharePolicy(Protocol[S]):
    """Says shares, given one moment and its own state; same input, same output."""

    name: ClassVar[str]
    needs: ClassVar[Needs]
    #: What the objective is called; empty where a policy has none.
    objective: ClassVar[str]
    #: It knows how fast jobs are on each type (else the published mechanism shuffles the types every round).
    aware: ClassVar[bool]
    #: It lets two jobs share devices.
    packs: ClassVar[bool]
    #: Only jobs with a share may run: nothing is filled with the others.
    strict: ClassVar[bool]

    def initial(self, seed: int) -> S:
        """The state before the first call; None for most."""
        ...

    def shares(self, instance: Instance, perf: ThroughputModel, state: S) -> tuple[Shares, S]:
        """The share of every job in view, and the state for the next time."""
        ...


AnySharePolicy = SharePolicy[Any]


class Sharing:
    """What a share policy is unless it says otherwise: it needs nothing, knows nothing, and fills what is left."""

    needs: ClassVar[Needs] = Needs.NOTHING
    objective: ClassVar[str] = ""
    aware: ClassVar[bool] = False
    packs: ClassVar[bool] = False
    strict: ClassVar[bool] = False
    #: Options that it has in the default rounds unless they are given.
    in_rounds: ClassVar[Mapping[str, Any]] = {}
