"""Stamps: the last operation of a job, in annotations of its object.

A restarted server reads them.

A stamp is written in the same patch as the size, so that an object never has the size of one generation and the grant
of another. Objects with the stamp of another store belong to another server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from levada.backends.kubernetes import names
from levada.core.grant import WorkerPlace
from levada.core.plan import Op, OpKind

#: Verdicts of an operation that failed: its start is rolled back, its resize is undone, all workers had to leave.
FAILED, UNDONE, LEFT = "failed", "undone", "left"
#: All workers were stopped with the server; the operation is carried out when it is applied again.
QUIT = "quit"
#: All workers succeeded; only for kinds whose objects do not say so themselves.
FINISHED = "finished"


class Stamp(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An operation and what became of it."""

    store: str
    epoch: int
    job: str
    number: int
    generation: int
    #: An OpKind.
    kind: int
    places: tuple[WorkerPlace, ...] = ()
    #: Places before a resize, to which the job returns if the resize fails.
    previous: tuple[WorkerPlace, ...] = ()
    #: The generation in which all workers were started together.
    world: int = 0
    start_limit_s: float = 300.0
    verdict: str = ""
    why: str = ""

    @property
    def size(self) -> int:
        """The number of workers."""
        return sum(place.group == "worker" for place in self.places)

    @property
    def stops(self) -> bool:
        """Whether the job must have no workers."""
        return self.kind == OpKind.STOP or self.verdict in (FAILED, LEFT, QUIT)

    @property
    def only_grows(self) -> bool:
        """Whether a resize gives back no place, so that the job can return to those before at any time."""
        return not Counter(place.node for place in self.previous) - Counter(place.node for place in self.places)

    def annotations(self) -> dict[str, str]:
        """The annotations of the job."""
        rest = {name: getattr(self, name) for name in _IN_GRANT if getattr(self, name)}
        rest["places"] = [_short(place) for place in self.places]
        rest["previous"] = [_short(place) for place in self.previous]
        return {
            names.STORE: self.store,
            names.EPOCH: str(self.epoch),
            names.NUMBER: str(self.number),
            names.GENERATION: str(self.generation),
            names.GRANT: msgspec.json.encode({key: value for key, value in rest.items() if value}).decode(),
        }


_IN_GRANT = ("job", "kind", "world", "start_limit_s", "verdict", "why")


def stamp_of(annotations: Mapping[str, str]) -> Stamp | None:
    """The stamp in the annotations of an object; None if there is none, or a user broke it."""
    try:
        rest = msgspec.json.decode(annotations[names.GRANT], type=dict[str, Any])
        for name in ("places", "previous"):
            rest[name] = [_place(short) for short in rest.get(name, ())]
        rest |= {"store": annotations[names.STORE]}
        rest |= {
            field: int(annotations[name])
            for field, name in (("epoch", names.EPOCH), ("number", names.NUMBER), ("generation", names.GENERATION))
        }
        return msgspec.convert(rest, Stamp)
    except (KeyError, ValueError, TypeError):
        return None


def stamp_for(op: Op, *, store: str, epoch: int, start_limit_s: float, before: Stamp | None) -> Stamp:
    """The stamp of a new operation on a job whose last stamp is *before*."""
    places = op.grant.places if op.grant is not None else ()
    in_place = op.kind == OpKind.RESIZE and before is not None and not before.stops
    return Stamp(
        store=store,
        epoch=epoch,
        job=op.job,
        number=op.number,
        generation=op.generation,
        kind=op.kind,
        places=places,
        previous=before.places if in_place and before is not None else (),
        world=before.world if in_place and before is not None else op.generation,
        start_limit_s=start_limit_s,
        verdict=FINISHED if before is not None and before.verdict == FINISHED else "",
    )


def _short(place: WorkerPlace) -> list[Any]:
    return [place.index, place.node, list(place.devices), *([place.group] if place.group != "worker" else [])]


def _place(short: list[Any]) -> WorkerPlace:
    index, node, devices, *group = short
    return WorkerPlace(index=index, node=node, devices=tuple(devices), group=group[0] if group else "worker")
