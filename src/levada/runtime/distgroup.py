"""The group of a script that uses torch.distributed: its members agree and share through that."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from levada.runtime.group import Group

#: Bytes sent at a time, so that a large state needs little memory of a device.
_CHUNK = 64 << 20


class DistGroup(Group):
    """The default process group of torch.distributed as a group."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._dist = torch.distributed
        super().__init__(self._dist.get_rank(), self._dist.get_world_size(), (), 0.0)
        on_gpu = self._dist.get_backend() == "nccl"
        self._device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")

    def allreduce(self, values: Any) -> None:
        """Replaces *values* by their sum over all members."""
        torch = self._torch
        kinds = {"d": torch.float64, "f": torch.float32, "q": torch.int64, "l": torch.int64, "i": torch.int32}
        view = memoryview(values)
        mine = torch.frombuffer(view.cast("B"), dtype=kinds[view.format])
        there = mine.to(self._device)
        self._dist.all_reduce(there)
        mine.copy_(there)

    def agree(self, votes: Sequence[float]) -> list[float]:
        """The largest vote of all members at each place."""
        there = self._torch.tensor([0.0, *votes], dtype=self._torch.float64, device=self._device)
        self._dist.all_reduce(there, op=self._dist.ReduceOp.MAX)
        told: list[float] = there.tolist()
        return told[1:]

    def gather(self, data: bytes) -> list[bytes]:
        """What every member gave, in the order of ranks."""
        told: list[Any] = [None] * self.size
        self._dist.all_gather_object(told, data)
        return told

    def broadcast(self, data: bytes | None, source: int = 0) -> bytes:
        """What *source* gave, to everybody."""
        torch = self._torch
        (length,) = self.agree([float(len(data or b"")) if self.rank == source else -1.0])
        whole = bytearray(data) if self.rank == source and data is not None else bytearray(int(length))
        view = memoryview(whole)
        for at in range(0, len(whole), _CHUNK):
            part = torch.frombuffer(view[at : at + _CHUNK], dtype=torch.uint8)
            there = part.to(self._device)
            self._dist.broadcast(there, source)
            if there is not part:
                part.copy_(there)
        return bytes(whole)

    def close(self) -> None:
        """Nothing: whoever made the process group ends it."""


def find() -> DistGroup | None:
    """The group that the script has made with torch.distributed; None where it has made none."""
    torch = sys.modules.get("torch")
    dist = getattr(torch, "distributed", None)
    if dist is None or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    return DistGroup(torch)
