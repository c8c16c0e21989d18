"""PyTorch: the runtime with process groups and DistributedDataParallel that follow the members.

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

Works with torch 1.13 and later. Under torchrun, and where LEVADA_ELASTIC is 0, members do not change while the script
runs: another size is a new start from the checkpoint.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from hmac import compare_digest
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import levada.runtime
from levada.runtime import place
from levada.runtime.channel import Channel, connect
from levada.runtime.distgroup import DistGroup
from levada.runtime.framework import Framework
from levada.runtime.group import Group, PeerLost
from levada.runtime.job import Job
from levada.runtime.link import digest
from levada.runtime.place import Place
from levada.runtime.world import World

#: All are there already when they meet in torch's own store.
_MEETING = timedelta(seconds=60)
#: How the backends say that somebody is gone.
_LOSS = re.compile(r"gloo|nccl|connection (closed|reset|refused)|broken pipe|socket|timed out", re.IGNORECASE)
#: Where it is the shape of a tensor or the like that is wrong, they say so in other words.
_NO_LOSS = re.compile(r"size|shape|dtype|not implemented|expected", re.IGNORECASE)


def init(*, backend: str | None = None, save_every_s: float = 600.0, limit_s: float = 600.0) -> TorchJob:
    """This worker's job; the same one when called again.

    *backend* is nccl where there are GPUs, and gloo otherwise. *limit_s* is how long members wait for one another.
    """
    if isinstance(levada.runtime._current, TorchJob):
        return levada.runtime._current
    if levada.runtime._current is not None:
        raise RuntimeError("levada.runtime.init was called before: call levada.runtime.torch.init instead of it")
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    backend = backend or ("nccl" if device.type == "cuda" else "gloo")
    is_elastic = "TORCHELASTIC_RUN_ID" not in os.environ and os.environ.get("LEVADA_ELASTIC", "1") != "0"
    here = place.read()
    framework = (TorchGroups if is_elastic else FixedTorchGroups)(backend, device, timedelta(seconds=limit_s))
    job = TorchJob(here, connect(here), framework, save_every_s)
    levada.runtime._current = job
    return job


class TorchGroups(Framework):
    """Process groups that are made anew in every generation."""

    def __init__(self, backend: str, device: torch.device, limit: timedelta) -> None:
        self.device = device
        self.models: list[Parallel] = []
        self.size = 1
        self._backend = backend
        self._limit = limit
        self._shares: DistGroup | None = None
        #: How tracebacks are printed, before torch and since.
        self._hook = self._torch_hook = sys.excepthook

    def meet(self, world: World, rank: int, secret: bytes, is_abandoned: Callable[[], bool]) -> Group:
        """Members meet over TCP, as always, and tell each other where torch's own store is."""
        group = super().meet(world, rank, secret, is_abandoned)
        try:
            if world.address.startswith("127."):
                # The name of this machine may mean anything; its peers are right here.
                os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            self._make_process_group(group, world.address)
        except BaseException:
            group.close()
            raise
        return group

    def settle(self, group: Group) -> None:
        """Models are wrapped anew."""
        self.size = group.size
        for model in self.models:
            model.wrap(self.size)

    def close(self) -> None:
        """Ends the process group and what was built on it."""
        self._shares = None
        self.size = 1
        for model in self.models:
            model.unwrap()
        if dist.is_initialized():
            with contextlib.suppress(Exception):
                dist.destroy_process_group()

    def share(self, group: Group, data: bytes | None, source: int) -> bytes:
        """Large states go the way of gradients, and are taken only if they are what a member has sent."""
        if self._shares is None:
            return group.broadcast(data, source)
        told = self._shares.broadcast(data, source)
        signed = group.broadcast(digest(told) if group.rank == source else None, source)
        if not compare_digest(digest(told), signed):
            raise PeerLost("the state that came is not the one that was sent")
        return told

    def is_loss(self, error: BaseException) -> bool:
        """Backends raise plain errors; their text tells."""
        if isinstance(error, PeerLost):
            return True
        kind = getattr(dist, "DistError", None)
        if kind is not None and isinstance(error, kind):
            return True
        text = str(error)
        return type(error) is RuntimeError and bool(_LOSS.search(text)) and not _NO_LOSS.search(text)

    def dump(self, value: Any) -> bytes:
        """As torch saves it."""
        target = io.BytesIO()
        torch.save(value, target)
        return target.getvalue()

    def load(self, data: bytes) -> Any:
        """To the CPU first: `load_state_dict` brings it where it belongs."""
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)

    def _make_process_group(self, group: Group, address: str) -> None:
        if group.size == 1:
            store: Any = dist.HashStore()
        elif group.rank == 0:
            # Port 0: the system finds a free one, and nobody can take it in between.
            store = dist.TCPStore(address, 0, group.size, True, _MEETING, wait_for_workers=False)
            group.broadcast(str(store.port).encode())
        else:
            port = int(group.broadcast(None))
            store = dist.TCPStore(address, port, group.size, False, _MEETING, wait_for_workers=False)
        # With each process group torch puts another rank before the lines of tracebacks: one is enough.
        if sys.excepthook is self._torch_hook:
            sys.excepthook = self._hook
        self._hook = sys.excepthook
        dist.init_process_group(self._backend, store=store, rank=group.rank, world_size=group.size, timeout=self._limit)
        self._torch_hook = sys.excepthook
        self._shares = DistGroup(torch) if group.size > 1 else None


class FixedTorchGroups(TorchGroups):
    """One process group, made as the environment says, for as long as the script runs."""

    is_elastic = False

    def meet(self, world: World, rank: int, secret: bytes, is_abandoned: Callable[[], bool]) -> Group:
        """The process group is the group, too."""
        if not dist.is_initialized():
            if len(world.members) > 1:
                dist.init_process_group(self._backend, timeout=self._limit)
            else:
                self._make_process_group(Group.alone(), "")
        return DistGroup(torch) if dist.get_world_size() > 1 else Group.alone()

    def is_loss(self, error: BaseException) -> bool:
        """Nothing can be mended here."""
        return False


class Parallel:
    """A module whose gradients are averaged over the members, whoever they are; else like the module itself."""

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
        """A block in which gradients are not averaged, to collect them over several batches."""
        wrapped = self._wrapped
        return wrapped.no_sync() if isinstance(wrapped, DistributedDataParallel) else contextlib.nullcontext()

    def wrap(self, size: int) -> None:
        """Follows the process group that there is now."""
        if size > 1 and any(parameter.requires_grad for parameter in self.module.parameters()):
            devices = [self._device] if self._device.type == "cuda" else None
            self._wrapped = DistributedDataParallel(self.module, device_ids=devices, **self._options)

    def unwrap(self) -> None:
        """Lets go of a process group."""
        self._wrapped = self.module


class Loader:
    """Batches of a dataset, shared out among the members: batch by batch the same samples, however many members.

    Each worker gets its part of every batch. A last batch that is not full is left out.
    """

    def __init__(
        self, job: TorchJob, dataset: Any, batch_size: int, shuffle: bool, seed: int, options: dict[str, Any]
    ) -> None:
        self._job = job
        self._dataset = dataset
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._seed = seed
        self._options = {**options, "worker_init_fn": _Steadfast(options.get("worker_init_fn"))}

    def __len__(self) -> int:
        return len(self._dataset) // self._batch_size

    def __iter__(self) -> Iterator[Any]:
        return self.starting_at(0)

    def starting_at(self, position: int) -> Iterator[Any]:
        """This worker's part of the batches from *position* on."""
        count = len(self._dataset)
        if self._shuffle:
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + self._job.epoch)
            order = torch.randperm(count, generator=generator).tolist()
        else:
            order = list(range(count))
        rank, size, whole = self._job.rank, self._job.world_size, self._batch_size
        batches = [order[at * whole : (at + 1) * whole][rank::size] for at in range(position, len(self))]
        return iter(DataLoader(self._dataset, batch_sampler=batches, **self._options))


class _Steadfast:
    """Prepares a process that loads data to go on when the whole process group is asked to stop: its parent ends it."""

    def __init__(self, then: Callable[[int], None] | None) -> None:
        self._then = then

    def __call__(self, number: int) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self._then is not None:
            self._then(number)


class TorchJob(Job):
    """A job that trains with torch."""

    def __init__(self, place: Place, channel: Channel, framework: TorchGroups, save_every_s: float) -> None:
        super().__init__(place, channel, framework, save_every_s)
        self._torch = framework

    @property
    def device(self) -> torch.device:
        """Where this worker computes."""
        return self._torch.device

    def parallel(self, module: torch.nn.Module, **options: Any) -> Parallel:
        """*module* as DistributedDataParallel (with these *options*) over the members, whoever they are."""
        model = Parallel(module, self.device, options)
        self._torch.models.append(model)
        model.wrap(self._torch.size)
        return model

    def loader(self, dataset: Any, batch_size: int, *, shuffle: bool = True, seed: int = 0, **options: Any) -> Loader:
        """Batches for `steps`, shared out among the members. *batch_size* is that of the whole job.

        It should be a multiple of every number of workers, since gradients are averaged over workers.
        *options* are those of torch's DataLoader.
        """
        return Loader(self, dataset, batch_size, shuffle, seed, options)
