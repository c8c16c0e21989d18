"""JAX: the runtime with a mesh over the devices of all members, made anew whenever these change.

    import levada.runtime.jax

    job = levada.runtime.jax.init()
    net = job.tree(params=params, moments=moments)   # on all devices, saved and shared
    for step in job.steps(10_000):
        batch = job.shard(my_part)                   # of what job.rank and job.world_size say
        net.value, loss = update(net.value, batch)
    job.complete()

To be called before anything else uses JAX. Between two generations values go through the host's memory, since devices
are made anew; functions are compiled again. When a member is lost, JAX ends all others: the job starts again from its
checkpoint.
"""

from __future__ import annotations

import contextlib
import gc
import socket
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.extend.backend import clear_backends
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import levada.runtime
from levada.runtime import place
from levada.runtime.channel import Channel, connect
from levada.runtime.framework import Framework
from levada.runtime.group import Group, PeerLost
from levada.runtime.job import Job
from levada.runtime.place import Place
from levada.runtime.world import World

#: Seconds that members wait for one another when they part.
_PARTING_S = 30


def init(*, save_every_s: float = 600.0) -> JaxJob:
    """This worker's job; the same one when called again."""
    if isinstance(levada.runtime._current, JaxJob):
        return levada.runtime._current
    if levada.runtime._current is not None:
        raise RuntimeError("levada.runtime.init was called before: call levada.runtime.jax.init instead of it")
    # The first is for CPUs; the second would take SIGTERM for itself.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)
    here = place.read()
    job = JaxJob(here, connect(here), JaxGroups(), save_every_s)
    levada.runtime._current = job
    return job


class Tree:
    """A value of arrays that all members have: `value` is on all devices and replaced by every step."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> Any:
        """As it is saved: in the memory of the host."""
        return _to_host(self.value)

    def load_state_dict(self, value: Any) -> None:
        """As it was saved; it goes to the devices before the next step."""
        self.value = value


class JaxGroups(Framework):
    """Processes that form one JAX system in every generation."""

    def __init__(self) -> None:
        self.trees: list[Tree] = []
        self.mesh: Mesh | None = None

    def meet(self, world: World, rank: int, secret: bytes, is_abandoned: Callable[[], bool]) -> Group:
        """Members meet over TCP, as always, and tell each other where JAX's own coordinator is."""
        group = super().meet(world, rank, secret, is_abandoned)
        if group.size > 1:
            try:
                port = group.broadcast(str(_free_port(world.address)).encode() if rank == 0 else None).decode()
                jax.distributed.initialize(
                    f"{world.address}:{port}", group.size, rank, shutdown_timeout_seconds=_PARTING_S
                )
            except BaseException:
                group.close()
                raise
        return group

    def settle(self, group: Group) -> None:
        """Values go to the devices that there are now."""
        self.mesh = Mesh(np.array(jax.devices()), ("data",))
        for tree in self.trees:
            tree.value = self.replicate(tree.value)

    def replicate(self, value: Any) -> Any:
        """*value* on all devices of all members."""
        assert self.mesh is not None
        everywhere = NamedSharding(self.mesh, PartitionSpec())
        return jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(everywhere, np.asarray(leaf)), value)

    def close(self) -> None:
        """Brings values back to the host, and forgets devices and peers."""
        if self.mesh is None:
            return
        self.mesh = None
        for tree in self.trees:
            tree.value = _to_host(tree.value)
        with contextlib.suppress(Exception):
            jax.distributed.shutdown()
        jax.clear_caches()
        clear_backends()
        gc.collect()

    def is_loss(self, error: BaseException) -> bool:
        """Only before JAX has connected the members: after that it ends them all when it loses one."""
        return isinstance(error, PeerLost) and self.mesh is None


class JaxJob(Job):
    """A job that trains with JAX."""

    def __init__(self, place: Place, channel: Channel, framework: JaxGroups, save_every_s: float) -> None:
        super().__init__(place, channel, framework, save_every_s)
        self._jax = framework

    @property
    def mesh(self) -> Mesh:
        """All devices of all members, in one row named `data`; another one in every generation."""
        self.join()
        assert self._jax.mesh is not None
        return self._jax.mesh

    def tree(self, **values: Any) -> Tree:
        """These values, by name, as one that is on all devices, saved, and shared with newcomers."""
        tree = Tree(values)
        self._jax.trees.append(tree)
        self._state.add({f"tree{len(self._jax.trees)}": tree})
        return tree

    def shard(self, value: Any) -> Any:
        """This worker's part of a batch as its part of one array over all devices."""
        parts = NamedSharding(self.mesh, PartitionSpec("data"))
        return jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(parts, np.asarray(leaf)), value)


def _to_host(value: Any) -> Any:
    def bring(leaf: Any) -> Any:
        return np.asarray(leaf.addressable_data(0)) if isinstance(leaf, jax.Array) else leaf

    return jax.tree.map(bring, value)


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
