"""Ordinals: operators number workers 0 to n - 1, engine indices may have holes.

Devices are bookkeeping on Kubernetes: what matters is how many workers of a job are on which node. A running worker
keeps its ordinal and its node where the grant still has a place on that node; others are deleted and placed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from levada.core.grant import WorkerPlace


class Seating(msgspec.Struct, frozen=True, kw_only=True):
    """The place of each ordinal from 0."""

    places: tuple[WorkerPlace, ...]
    #: Ordinals whose worker is on a node where it has no place.
    moves: tuple[int, ...] = ()

    @property
    def moves_first(self) -> bool:
        """Whether rank 0 would move. It holds the rendezvous, so that all workers must restart."""
        return 0 in self.moves


def seat(places: Sequence[WorkerPlace], current: Mapping[int, str]) -> Seating:
    """Assign *places* to ordinals 0 to n - 1 with the fewest moves; *current*: the nodes of running workers.

    A worker keeps the place with its own index if there is one on its node, so that the assignment of a complete grant
    without holes is the identity. Ordinals from n on have no place: their operator removes them.
    """
    open_places = {place.index: place for place in sorted(places, key=lambda place: place.index)}
    seats: dict[int, WorkerPlace] = {}
    moves = []
    for ordinal in sorted(ordinal for ordinal in current if ordinal < len(places)):
        here = [place for place in open_places.values() if place.node == current[ordinal]]
        if not here:
            moves.append(ordinal)
            continue
        place = next((place for place in here if place.index == ordinal), here[0])
        seats[ordinal] = open_places.pop(place.index)
    for ordinal in range(len(places)):
        if ordinal not in seats:
            place = open_places.get(ordinal) or next(iter(open_places.values()))
            seats[ordinal] = open_places.pop(place.index)
    return Seating(places=tuple(seats[ordinal] for ordinal in range(len(places))), moves=tuple(moves))
