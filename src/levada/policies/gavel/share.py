"""The interface of share policies: fractions of time instead of sizes."""

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
    """The fraction of time per job and GPU type, and per pair of jobs that share GPUs."""

    #: Row i is job i of the snapshot.
    share: Floats
    #: Rows of the two members, the earlier one first.
    pairs: Ints = _NO_PAIRS
    pair_share: Floats | None = None
    #: The policy's objective at these shares; nan if it has none.
    objective: float = float("nan")
    #: What went wrong in solving, as text for users; the shares are feasible nevertheless.
    alarm: str = ""


class SharePolicy(Protocol[S]):
    """Computes shares from one instance and its own state; same input, same output."""

    name: ClassVar[str]
    needs: ClassVar[Needs]
    #: The name of the objective; empty for a policy without one.
    objective: ClassVar[str]
    #: Knows the speed of jobs on each type (otherwise the published mechanism shuffles the types every round).
    aware: ClassVar[bool]
    #: Lets two jobs share devices.
    packs: ClassVar[bool]
    #: Only jobs with a share may run; free devices are not filled with other jobs.
    strict: ClassVar[bool]

    def initial(self, seed: int) -> S:
        """The state before the first call; None for a stateless policy."""
        ...

    def shares(self, instance: Instance, perf: ThroughputModel, state: S) -> tuple[Shares, S]:
        """The share of every job in view, and the state for the next call."""
        ...


AnySharePolicy = SharePolicy[Any]


class ShareDefaults:
    """Defaults of a share policy; not a policy itself."""

    needs: ClassVar[Needs] = Needs.NOTHING
    objective: ClassVar[str] = ""
    aware: ClassVar[bool] = False
    packs: ClassVar[bool] = False
    strict: ClassVar[bool] = False
    #: Defaults of options in the default rounds, where they differ from those of the constructor.
    in_rounds: ClassVar[Mapping[str, Any]] = {}

    def initial(self, seed: int) -> Any:
        """Stateless unless overridden."""
        return None
