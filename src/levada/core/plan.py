"""The operations that lead from held to target, as columns; objects are made only when asked for."""

from __future__ import annotations

from typing import Final

import msgspec

from levada.core.codes import Codes
from levada.core.grant import Grant
from levada.core.types import Ints


class OpKind(Codes):
    """What a backend is asked to do with a job."""

    NONE: Final = 0
    START: Final = 1
    RESIZE: Final = 2
    STOP: Final = 3


class Op(msgspec.Struct, frozen=True, kw_only=True):
    """One operation on one job, for a backend: idempotent on (job, generation)."""

    job: str
    number: int
    kind: int  #: an OpKind
    generation: int
    #: What the job shall hold after it; None for a stop.
    grant: Grant | None
    #: (node, device id) that it takes and gives up. Workers without a GPU have none.
    adds: tuple[tuple[str, str], ...] = ()
    drops: tuple[tuple[str, str], ...] = ()
    batch: int = 0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Operations issued together; row i of the first columns is one operation."""

    number: Ints
    kind: Ints
    generation: Ints
    type: Ints
    count: Ints
    #: Whole devices taken and given up: device number and the row of its operation.
    add_device: Ints
    add_row: Ints
    drop_device: Ints
    drop_row: Ints

    def __len__(self) -> int:
        return len(self.number)

    def rows(self, kind: int) -> Ints:
        """The rows of one kind of operation."""
        return (self.kind == kind).nonzero()[0]

    def adds(self, row: int) -> Ints:
        """The whole devices that an operation takes."""
        return self.add_device[self.add_row == row]

    def drops(self, row: int) -> Ints:
        """The whole devices that an operation gives up."""
        return self.drop_device[self.drop_row == row]
