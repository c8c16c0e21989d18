"""Group over torch.distributed, for scripts that create their own process group."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from levada.runtime.group import Group

#: Bytes per broadcast, so that a large state needs little device memory.
_CHUNK = 64 << 20


class DistGroup(Group):
    """The default process group of torch.distributed as a `Group`."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._dist = torch.distributed
        super().__init__(self._dist.get_rank(), self._dist.get_world_size(), (), 0.0)
        on_gpu = self._dist.get_backend() == "nccl"
        self._device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")

    def allreduce(self, values: Any) -> None:
        """Replace *values* by their sum over all members."""
        torch = self._torch
        kinds = {"d": torch.float64, "f": torch.float32, "q": torch.int64, "l": torch.int64, "i": torch.int32}
        view = memoryview(values)
        mine = torch.frombuffer(view.cast("B"), dtype=kinds[view.format])
        on_device = mine.to(self._device)
        self._dist.all_reduce(on_device)
        mine.copy_(on_device)

    def agree(self, votes: Sequence[float]) -> list[float]:
        """The element-wise maximum of all members' votes."""
        on_device = self._torch.tensor([0.0, *votes], dtype=self._torch.float64, device=self._device)
        self._dist.all_reduce(on_device, op=self._dist.ReduceOp.MAX)
        gathered: list[float] = on_device.tolist()
        return gathered[1:]

    def gather(self, data: bytes) -> list[bytes]:
        """The data of every member in the order of ranks."""
        gathered: list[Any] = [None] * self.size
        self._dist.all_gather_object(gathered, data)
        return gathered

    def broadcast(self, data: bytes | None, source: int = 0) -> bytes:
        """The data of rank *source*, for all members."""
        torch = self._torch
        (length,) = self.agree([float(len(data or b"")) if self.rank == source else -1.0])
        whole = bytearray(data) if self.rank == source and data is not None else bytearray(int(length))
        view = memoryview(whole)
        for at in range(0, len(whole), _CHUNK):
            part = torch.frombuffer(view[at : at + _CHUNK], dtype=torch.uint8)
            on_device = part.to(self._device)
            self._dist.broadcast(on_device, source)
            if on_device is not part:
                part.copy_(on_device)
        return bytes(whole)

    def close(self) -> None:
        """Do nothing: the process group belongs to the script."""


def find() -> DistGroup | None:
    """The group of the script's torch.distributed process group; None if there is none."""
    torch = sys.modules.get("torch")
    dist = getattr(torch, "distributed", None)
    if dist is None or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    return DistGroup(torch)
