"""JAX runtime: a mesh over the devices of all members, rebuilt when they change.

    import levada.runtime.jax

    job = levada.runtime.jax.init()
    net = job.tree(params=params, moments=moments)   # on all devices, saved and shared
    for step in job.steps(10_000):
        batch = job.shard(my_part)                   # of what job.rank and job.world_size say
        net.value, loss = update(net.value, batch)
    job.complete()

Call `init` before anything else uses JAX. Between two generations values are copied through host memory, since JAX
recreates its devices, and functions are compiled again. When a member is lost, JAX ends all others: the job restarts
from its checkpoint.
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
from levada.runtime import worker_env
from levada.runtime.channel import Channel, connect
from levada.runtime.framework import Framework
from levada.runtime.generation_file import World
from levada.runtime.group import Group, PeerLost
from levada.runtime.job import Job
from levada.runtime.worker_env import WorkerEnv

#: Timeout of JAX's shutdown barrier in seconds.
_PARTING_S = 30


def init(*, save_every_s: float = 600.0) -> JaxJob:
    """Return this worker's job; repeated calls return the same one."""
    if isinstance(levada.runtime._current, JaxJob):
        return levada.runtime._current
    if levada.runtime._current is not None:
        raise RuntimeError("levada.runtime.init was called before: call only levada.runtime.jax.init")
    # Collectives for CPUs; and the preemption service would handle SIGTERM itself.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)
    here = worker_env.read()
    job = JaxJob(here, connect(here), JaxGroups(), save_every_s)
    levada.runtime._current = job
    return job


class Tree:
    """A pytree of arrays replicated over all devices; every step replaces `value`."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> Any:
        """The value in host memory, for checkpoints."""
        return _to_host(self.value)

    def load_state_dict(self, value: Any) -> None:
        """Set a saved value; it is copied to the devices before the next step."""
        self.value = value


class JaxGroups(Framework):
    """Framework with one distributed JAX system per generation."""

    def __init__(self) -> None:
        self.trees: list[Tree] = []
        self.mesh: Mesh | None = None

    def form_group(self, world: World, rank: int, secret: bytes, is_abandoned: Callable[[], bool]) -> Group:
        """Meet over TCP, then initialize jax.distributed with a coordinator on rank 0."""
        group = super().form_group(world, rank, secret, is_abandoned)
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

    def on_state_aligned(self, group: Group) -> None:
        """Build the mesh and replicate all trees over its devices."""
        self.mesh = Mesh(np.array(jax.devices()), ("data",))
        for tree in self.trees:
            tree.value = self.replicate(tree.value)

    def replicate(self, value: Any) -> Any:
        """Replicate *value* over all devices of all members."""
        assert self.mesh is not None
        everywhere = NamedSharding(self.mesh, PartitionSpec())
        return jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(everywhere, np.asarray(leaf)), value)

    def close(self) -> None:
        """Copy values to the host, shut down jax.distributed, and clear its backends."""
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
        """Whether a loss can be survived: only before jax.distributed runs, which ends all members on a loss."""
        return isinstance(error, PeerLost) and self.mesh is None


class JaxJob(Job):
    """A job that trains with JAX."""

    def __init__(self, place: WorkerEnv, channel: Channel, framework: JaxGroups, save_every_s: float) -> None:
        super().__init__(place, channel, framework, save_every_s)
        self._jax = framework

    @property
    def mesh(self) -> Mesh:
        """One-dimensional mesh `data` over all devices of all members; it changes with every generation."""
        self.join()
        assert self._jax.mesh is not None
        return self._jax.mesh

    def tree(self, **values: Any) -> Tree:
        """Create a replicated tree of these values, which is saved and sent to new members."""
        tree = Tree(values)
        self._jax.trees.append(tree)
        self._state.add({f"tree{len(self._jax.trees)}": tree})
        return tree

    def shard(self, value: Any) -> Any:
        """Make a global array over all devices from this worker's part of a batch."""
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
