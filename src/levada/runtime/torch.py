"""PyTorch runtime: process groups and DDP models that follow the members.

    import levada.runtime.torch

    job = levada.runtime.torch.init()
    model = job.parallel(Net().to(job.device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job.state(model=model, optimizer=optimizer)
    loader = job.loader(dataset, batch_size=256)
    for epoch in job.epochs(90):
        for images, labels in job.steps(loader):
            with job.guard():
                ...
    job.complete()

It works with torch 1.13 and later. Under torchrun, and with LEVADA_ELASTIC=0, members do not change while the script
runs: a resize restarts it from the checkpoint.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from hmac import compare_digest
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import levada.runtime
from levada.runtime import worker_env
from levada.runtime.channel import Channel, connect
from levada.runtime.data_loaders import IgnoresStop
from levada.runtime.dist_group import DistGroup
from levada.runtime.framework import Framework
from levada.runtime.generation_file import World
from levada.runtime.group import Group, PeerLost
from levada.runtime.job import Job
from levada.runtime.secure_socket import digest
from levada.runtime.worker_env import WorkerEnv

#: Timeout of torch's own store; all members are connected already when they open it.
_STORE_TIMEOUT = timedelta(seconds=60)
#: Error texts of backends that mean the loss of a peer.
_LOSS = re.compile(r"gloo|nccl|connection (closed|reset|refused)|broken pipe|socket|timed out", re.IGNORECASE)
#: Error texts that mean a mistake in the script, such as a wrong shape.
_NO_LOSS = re.compile(r"size|shape|dtype|not implemented|expected", re.IGNORECASE)


def init(*, backend: str | None = None, save_every_s: float = 600.0, limit_s: float = 600.0) -> TorchJob:
    """Return this worker's job; repeated calls return the same one.

    *backend*: default nccl with GPUs, otherwise gloo. *limit_s*: timeout of collective operations.
    """
    if isinstance(levada.runtime._current, TorchJob):
        return levada.runtime._current
    if levada.runtime._current is not None:
        raise RuntimeError("levada.runtime.init was called before: call only levada.runtime.torch.init")
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    backend = backend or ("nccl" if device.type == "cuda" else "gloo")
    is_elastic = "TORCHELASTIC_RUN_ID" not in os.environ and os.environ.get("LEVADA_ELASTIC", "1") != "0"
    here = worker_env.read()
    framework = (TorchGroups if is_elastic else FixedTorchGroups)(backend, device, timedelta(seconds=limit_s))
    job = TorchJob(here, connect(here), framework, save_every_s)
    levada.runtime._current = job
    return job


class TorchGroups(Framework):
    """Framework with a new process group in every generation."""

    def __init__(self, backend: str, device: torch.device, limit: timedelta) -> None:
        self.device = device
        self.models: list[Parallel] = []
        self.size = 1
        self._backend = backend
        self._limit = limit
        self._state_group: DistGroup | None = None
        #: The exception hooks before and after torch has set its own.
        self._hook = self._torch_hook = sys.excepthook

    def form_group(self, world: World, rank: int, secret: bytes, is_abandoned: Callable[[], bool]) -> Group:
        """Meet over TCP, then create torch's process group with a store on rank 0."""
        group = super().form_group(world, rank, secret, is_abandoned)
        try:
            if world.address.startswith("127."):
                # All peers are on this machine, and its host name may resolve to another address.
                os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            self._make_process_group(group, world.address)
        except BaseException:
            group.close()
            raise
        return group

    def on_state_aligned(self, group: Group) -> None:
        """Wrap the models for the new process group."""
        self.size = group.size
        for model in self.models:
            model.wrap(self.size)

    def close(self) -> None:
        """Destroy the process group and unwrap the models."""
        self._state_group = None
        self.size = 1
        for model in self.models:
            model.unwrap()
        if dist.is_initialized():
            with contextlib.suppress(Exception):
                dist.destroy_process_group()

    def share(self, group: Group, data: bytes | None, source: int) -> bytes:
        """Broadcast large states through torch; the digest goes over the authenticated group."""
        if self._state_group is None:
            return group.broadcast(data, source)
        received = self._state_group.broadcast(data, source)
        signed = group.broadcast(digest(received) if group.rank == source else None, source)
        if not compare_digest(digest(received), signed):
            raise PeerLost("the received state does not match its digest")
        return received

    def is_loss(self, error: BaseException) -> bool:
        """Whether *error* means the loss of a peer; backends raise plain errors, so the text decides."""
        if isinstance(error, PeerLost):
            return True
        kind = getattr(dist, "DistError", None)
        if kind is not None and isinstance(error, kind):
            return True
        text = str(error)
        return type(error) is RuntimeError and bool(_LOSS.search(text)) and not _NO_LOSS.search(text)

    def dump(self, value: Any) -> bytes:
        """Serialize with `torch.save`."""
        target = io.BytesIO()
        torch.save(value, target)
        return target.getvalue()

    def load(self, data: bytes) -> Any:
        """Deserialize to the CPU; `load_state_dict` copies to the right device."""
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)

    def _make_process_group(self, group: Group, address: str) -> None:
        if group.size == 1:
            store: Any = dist.HashStore()
        elif group.rank == 0:
            # Port 0: the system picks a free port, so no other process can take it meanwhile.
            store = dist.TCPStore(address, 0, group.size, True, _STORE_TIMEOUT, wait_for_workers=False)
            group.broadcast(str(store.port).encode())
        else:
            port = int(group.broadcast(None))
            store = dist.TCPStore(address, port, group.size, False, _STORE_TIMEOUT, wait_for_workers=False)
        # Each process group makes torch add another rank prefix to tracebacks: keep one.
        if sys.excepthook is self._torch_hook:
            sys.excepthook = self._hook
        self._hook = sys.excepthook
        dist.init_process_group(self._backend, store=store, rank=group.rank, world_size=group.size, timeout=self._limit)
        self._torch_hook = sys.excepthook
        self._state_group = DistGroup(torch) if group.size > 1 else None


class FixedTorchGroups(TorchGroups):
    """Framework with one process group from the environment for the whole run."""

    is_elastic = False

    def form_group(self, world: World, rank: int, secret: bytes, is_abandoned: Callable[[], bool]) -> Group:
        """Create the process group once and use it as the group."""
        if not dist.is_initialized():
            if len(world.members) > 1:
                dist.init_process_group(self._backend, timeout=self._limit)
            else:
                self._make_process_group(Group.alone(), "")
        return DistGroup(torch) if dist.get_world_size() > 1 else Group.alone()

    def is_loss(self, error: BaseException) -> bool:
        """Always False: a loss cannot be survived in place."""
        return False


class Parallel:
    """A module whose gradients are averaged over the current members."""

    def __init__(self, module: torch.nn.Module, device: torch.device, options: dict[str, Any]) -> None:
        self.module = module
        self._device = device
        self._options = options
        self._wrapped: torch.nn.Module = module

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._wrapped(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def no_sync(self) -> contextlib.AbstractContextManager[Any]:
        """A block without gradient averaging, to accumulate gradients over several batches."""
        wrapped = self._wrapped
        return wrapped.no_sync() if isinstance(wrapped, DistributedDataParallel) else contextlib.nullcontext()

    def wrap(self, size: int) -> None:
        """Wrap the module for the current process group."""
        if size > 1 and any(parameter.requires_grad for parameter in self.module.parameters()):
            devices = [self._device] if self._device.type == "cuda" else None
            self._wrapped = DistributedDataParallel(self.module, device_ids=devices, **self._options)

    def unwrap(self) -> None:
        """Release the process group."""
        self._wrapped = self.module


class SampleShards:
    """Sampler of this worker's samples in the current epoch; follows changes of the members.

    An incomplete last batch is dropped.
    """

    def __init__(self, job: TorchJob, count: int, batch_size: int, shuffle: bool, seed: int) -> None:
        self._job = job
        self._count = count
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._seed = seed
        self.batch_count = count // batch_size

    def __len__(self) -> int:
        return self.batch_count * len(range(self._job.rank, self._batch_size, self._job.world_size))

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self.batches(0))

    def set_epoch(self, epoch: int) -> None:
        """Do nothing; exists for code written for DistributedSampler. The job knows its epoch."""

    def batches(self, position: int) -> list[list[int]]:
        """This worker's part of the batches from *position* on."""
        if self._shuffle:
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + self._job.epoch)
            order = torch.randperm(self._count, generator=generator).tolist()
        else:
            order = list(range(self._count))
        rank, size, whole = self._job.rank, self._job.world_size, self._batch_size
        return [order[at * whole : (at + 1) * whole][rank::size] for at in range(position, self.batch_count)]


class Loader:
    """Data loader that shards every batch over the members.

    A batch has the same samples for any number of members. `dataset` and `sampler` are those of torch's DataLoader.
    """

    def __init__(self, dataset: Any, sampler: SampleShards, options: dict[str, Any]) -> None:
        self.dataset = dataset
        self.sampler = sampler
        self._options = {**options, "worker_init_fn": IgnoresStop(options.get("worker_init_fn"))}

    def __len__(self) -> int:
        return self.sampler.batch_count

    def __iter__(self) -> Iterator[Any]:
        return self.starting_at(0)

    def starting_at(self, position: int) -> Iterator[Any]:
        """This worker's part of the batches from *position* on."""
        return iter(DataLoader(self.dataset, batch_sampler=self.sampler.batches(position), **self._options))


class TorchJob(Job):
    """A job that trains with torch."""

    def __init__(self, place: WorkerEnv, channel: Channel, framework: TorchGroups, save_every_s: float) -> None:
        super().__init__(place, channel, framework, save_every_s)
        self._torch = framework

    @property
    def device(self) -> torch.device:
        """The device of this worker."""
        return self._torch.device

    def parallel(self, module: torch.nn.Module, **options: Any) -> Parallel:
        """Wrap *module* in DistributedDataParallel (with *options*) over the current members."""
        model = Parallel(module, self.device, options)
        self._torch.models.append(model)
        model.wrap(self._torch.size)
        return model

    def loader(self, dataset: Any, batch_size: int, *, shuffle: bool = True, seed: int = 0, **options: Any) -> Loader:
        """Create a loader for `steps` that shards batches over the members.

        *batch_size* is that of the whole job. It should be a multiple of every possible number of workers, since
        gradients are averaged over workers. *options* are those of torch's DataLoader.
        """
        return Loader(dataset, SampleShards(self, len(dataset), batch_size, shuffle, seed), options)
