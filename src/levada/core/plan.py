"""Operations that lead from held to target devices, as columns and as objects."""

from __future__ import annotations

from typing import Final

import msgspec

from levada.core.codes import Codes
from levada.core.grant import Grant
from levada.core.types import Ints


class OpKind(Codes):
    """Kinds of operations."""

    NONE: Final = 0
    START: Final = 1
    RESIZE: Final = 2
    STOP: Final = 3


class Op(msgspec.Struct, frozen=True, kw_only=True):
    """An operation on a job, for a backend: idempotent on (job, generation)."""

    job: str
    number: int
    kind: int  #: an OpKind
    generation: int
    #: The target of the job; None for a stop.
    grant: Grant | None
    #: (node, device id) of added and dropped devices.
    adds: tuple[tuple[str, str], ...] = ()
    drops: tuple[tuple[str, str], ...] = ()
    batch: int = 0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Operations that are issued together; row i of the first five columns is one operation."""

    number: Ints
    kind: Ints
    generation: Ints
    type: Ints
    count: Ints
    #: Added and dropped whole devices: device number and row of the operation.
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
        """The whole devices that an operation adds."""
        return self.add_device[self.add_row == row]

    def drops(self, row: int) -> Ints:
        """The whole devices that an operation drops."""
        return self.drop_device[self.drop_row == row]
