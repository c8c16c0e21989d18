"""The nodes of a machine: its GPUs as NVML sees them, or pretend nodes as declared."""

from __future__ import annotations

import importlib
import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from levada.core.cluster import Device, Foreign, Node

#: What a machine without GPUs pretends to have: two nodes of four.
DEFAULT_TYPE = "gpu"
DEFAULT_NODES: tuple[Mapping[str, int], ...] = ({DEFAULT_TYPE: 4}, {DEFAULT_TYPE: 4})

_MIB = 1 << 20
_BRANDS = {"nvidia", "tesla", "geforce", "quadro", "titan", "graphics", "device"}


def pretend_nodes(declared: Sequence[Mapping[str, int]], *, prefix: str = "node") -> tuple[Node, ...]:
    """Nodes as declared, each with so many GPUs of each type. They share one machine, so cores and memory are free."""
    return tuple(Node.of(f"{prefix}-{at}", gpus) for at, gpus in enumerate(declared))


class Nvml:
    """The GPUs of this machine. Nothing here raises: a machine without a driver has none."""

    def __init__(self, library: Any = None) -> None:
        self._nvml = library
        #: Why there are no GPUs; empty where there are.
        self.why = ""
        try:
            if self._nvml is None:
                self._nvml = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
        except ImportError:
            self._nvml, self.why = None, "nvidia-ml-py is not installed (pip install 'levada[gpu]')"
        except self._errors() as broken:
            self._nvml, self.why = None, str(broken)

    def _errors(self) -> type[Exception]:
        found: type[Exception] = self._nvml.NVMLError
        return found

    def devices(self) -> tuple[Device, ...]:
        """GPUs by UUID, in the order of the driver."""
        if self._nvml is None:
            return ()
        found = []
        try:
            for at in range(self._nvml.nvmlDeviceGetCount()):
                found.append(self._device(at))
        except self._errors() as broken:
            self.why = str(broken)
        return tuple(device for device in found if device is not None)

    def _device(self, at: int) -> Device | None:
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(at)
            memory = int(self._nvml.nvmlDeviceGetMemoryInfo(handle).total) // _MIB
            name, uuid = _text(self._nvml.nvmlDeviceGetName(handle)), _text(self._nvml.nvmlDeviceGetUUID(handle))
        except self._errors() as broken:
            self.why = str(broken)  # one that fell off the bus takes no other along
            return None
        return Device(id=uuid, type=type_of(name), memory=memory)

    def use(self) -> dict[str, float]:
        """By UUID how busy each GPU was a moment ago, in percent."""
        found: dict[str, float] = {}
        for device in self.devices():
            try:
                handle = self._nvml.nvmlDeviceGetHandleByUUID(device.id)
                found[device.id] = float(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
            except self._errors():
                continue  # some, in parts for several users, do not tell
        return found

    def users(self) -> dict[str, list[tuple[int, int]]]:
        """By UUID who computes there: process and MiB."""
        found: dict[str, list[tuple[int, int]]] = {}
        for device in self.devices():
            try:
                handle = self._nvml.nvmlDeviceGetHandleByUUID(device.id)
                running = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            except self._errors():
                continue
            found[device.id] = [(int(one.pid), int(one.usedGpuMemory or 0) // _MIB) for one in running]
        return found


def real_node(nvml: Nvml, name: str = "") -> Node | None:
    """This machine as one node with its real GPUs; None where it has none."""
    devices = nvml.devices()
    if not devices:
        return None
    cores = len(os.sched_getaffinity(0)) * 1000
    return Node(name=name or socket.gethostname(), devices=devices, cpu=cores, memory=_memory_mib())


def nodes_here(
    declared: Sequence[Mapping[str, int]] | None = None, *, nvml: Nvml | None = None, name: str = ""
) -> tuple[tuple[Node, ...], str]:
    """The nodes of this machine: real GPUs where there are any, else as declared; and a line that says which."""
    nvml = nvml or Nvml()
    node = real_node(nvml, name)
    if node is not None:
        ignored = "" if declared is None else "; the nodes that were declared are not used"
        return (node,), f"{len(node.devices)} GPUs were found{ignored}"
    nodes = pretend_nodes(DEFAULT_NODES if declared is None else declared, prefix=name or "node")
    return nodes, f"no GPUs were found ({nvml.why or 'NVML sees none'}): nodes are pretended"


def type_of(name: str) -> str:
    """The GPU type that a product's name means: `a100` of `NVIDIA A100-SXM4-40GB`, `rtx3090` of a GeForce RTX 3090."""
    words = [word for word in re.split(r"[\s\-_/]+", name.lower()) if word and word not in _BRANDS]
    if not words:
        return DEFAULT_TYPE
    if words[0] in ("rtx", "gtx") and len(words) > 1:
        return words[1] if words[1][0].isalpha() else "".join(words[:2])
    return words[0]


def foreign_use(node: str, users: Mapping[str, list[tuple[int, int]]], is_ours: Callable[[int], bool]) -> list[Foreign]:
    """What others compute on the GPUs of a node: one row for each GPU, which is theirs as a whole."""
    found = []
    for device, processes in sorted(users.items()):
        others = [(pid, memory) for pid, memory in processes if not is_ours(pid)]
        if others:
            pids = ",".join(str(pid) for pid, _ in sorted(others))
            memory = sum(used for _, used in others)
            found.append(
                Foreign(id=f"{node}/{device}/{pids}", node=node, devices=(device,), milli=1000, gpu_memory=memory)
            )
    return found


def _memory_mib() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _MIB


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
