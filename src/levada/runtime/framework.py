"""Framework adapters: how members form groups and how state is serialized."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from levada.runtime.generation_file import World
from levada.runtime.group import Group, PeerLost


class Framework:
    """Adapter for plain Python and NumPy: an elastic group over TCP."""

    #: Whether members may change while the script runs. Otherwise it stays in its first generation.
    is_elastic = True

    def form_group(self, world: World, rank: int, secret: bytes, is_abandoned: Callable[[], bool]) -> Group:
        """Wait for all members of *world* and return their group."""
        if not world.is_safe:
            raise RuntimeError(
                "the server provides no key for this job, so its workers cannot authenticate over a network: "
                "install the same version of Levada on the server and here"
            )
        return Group.open(rank, len(world.members), world.address, world.port, secret, is_abandoned=is_abandoned)

    def on_state_aligned(self, group: Group) -> None:
        """Called when all members share one state, before the first step of a new group."""

    def close(self) -> None:
        """Leave the group of `form_group`, which may be broken; idempotent."""

    def share(self, group: Group, data: bytes | None, source: int) -> bytes:
        """Send the state of rank *source* to all members."""
        return group.broadcast(data, source)

    def is_loss(self, error: BaseException) -> bool:
        """Whether *error* means the loss of a peer."""
        return isinstance(error, PeerLost)

    def dump(self, value: Any) -> bytes:
        """Serialize a state."""
        return pickle.dumps(value, protocol=5)

    def load(self, data: bytes) -> Any:
        """Deserialize a state; only for data of the job's own checkpoints and authenticated peers."""
        return pickle.loads(data)


class OwnGroups(Framework):
    """Adapter for scripts that create their own process groups; a resize restarts them.

    Members agree through torch.distributed if the script uses it; otherwise each one acts alone.
    """

    is_elastic = False

    def form_group(self, world: World, rank: int, secret: bytes, is_abandoned: Callable[[], bool]) -> Group:
        """The process group that the script has created by its first step."""
        from levada.runtime.dist_group import find  # imports torch only if the script has

        return find() or Group.alone()
