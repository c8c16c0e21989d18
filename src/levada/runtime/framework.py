"""What differs between frameworks: how members meet, and how their state becomes bytes."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from levada.runtime.group import Group, PeerLost
from levada.runtime.world import World


class Framework:
    """Plain Python and NumPy: members meet in a group over TCP, and come and go while they train."""

    #: Whether members may change while the script runs. Otherwise it stays in the generation it was started for.
    is_elastic = True

    def meet(self, world: World, rank: int, secret: bytes, is_abandoned: Callable[[], bool]) -> Group:
        """The group of all members of *world*, as soon as they are there."""
        if not world.is_safe:
            raise RuntimeError(
                "this job's server gives no key that keeps strangers out, so its workers do not meet over a network: "
                "install the same Levada on the server and here"
            )
        return Group.open(rank, len(world.members), world.address, world.port, secret, is_abandoned=is_abandoned)

    def settle(self, group: Group) -> None:
        """Called when all members share one state, before the first step in a new group."""

    def close(self) -> None:
        """Leaves what `meet` has made, which may be broken; may be called more than once."""

    def share(self, group: Group, data: bytes | None, source: int) -> bytes:
        """Brings what *source* gave to all."""
        return group.broadcast(data, source)

    def is_loss(self, error: BaseException) -> bool:
        """Whether *error* says that a peer is gone."""
        return isinstance(error, PeerLost)

    def dump(self, value: Any) -> bytes:
        """A state as bytes."""
        return pickle.dumps(value, protocol=5)

    def load(self, data: bytes) -> Any:
        """The state that `dump` made bytes of; only ever of the job's own checkpoints and peers."""
        return pickle.loads(data)


class OwnGroups(Framework):
    """The script makes its own groups: another size is a new start from the checkpoint.

    Where it uses torch.distributed, members agree through that; else each one is on its own.
    """

    is_elastic = False

    def meet(self, world: World, rank: int, secret: bytes, is_abandoned: Callable[[], bool]) -> Group:
        """What the script has made by the time of its first step."""
        from levada.runtime.distgroup import find  # imports nothing unless the script has

        return find() or Group.alone()
