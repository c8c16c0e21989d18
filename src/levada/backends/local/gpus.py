"""Nodes of a machine: GPUs found by NVML, or declared pretend nodes."""

from __future__ import annotations

import importlib
import os
import re
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from levada.core.cluster import Device, Foreign, Node
from levada.errors import Refused

#: Default pretend nodes of a machine without GPUs: two with four GPUs each.
DEFAULT_TYPE = "gpu"
DEFAULT_NODES: tuple[Mapping[str, int], ...] = ({DEFAULT_TYPE: 4}, {DEFAULT_TYPE: 4})

_MIB = 1 << 20
#: The driver has one folder per GPU here.
_DRIVER = "/proc/driver/nvidia/gpus"
#: Pretend nodes that are listed by name; others are counted.
_MOST_NAMED = 4
_BRANDS = {"nvidia", "tesla", "geforce", "quadro", "titan", "graphics", "device"}


def pretend_nodes(declared: Sequence[Mapping[str, int]], *, prefix: str = "node") -> tuple[Node, ...]:
    """Nodes with the declared number of GPUs per type; without limits of CPU and memory, since they share a machine."""
    return tuple(Node.of(f"{prefix}-{at}", gpus) for at, gpus in enumerate(declared))


class Nvml:
    """The GPUs of this machine. Methods never raise: a machine without a driver has none."""

    def __init__(self, library: Any = None) -> None:
        self._nvml = library
        #: Why there are no GPUs; empty if there are.
        self.why = ""
        #: Whether the library is installed, with or without a driver.
        self.installed = True
        try:
            if self._nvml is None:
                self._nvml = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
        except ImportError:
            self.installed = False
            self._nvml, self.why = None, "nvidia-ml-py is not installed: pip install 'levada[gpu]'"
        except self._errors() as error:
            self._nvml, self.why = None, str(error)

    def _errors(self) -> type[Exception]:
        error: type[Exception] = self._nvml.NVMLError
        return error

    def devices(self) -> tuple[Device, ...]:
        """GPUs by UUID, in the order of the driver."""
        if self._nvml is None:
            return ()
        devices = []
        try:
            for at in range(self._nvml.nvmlDeviceGetCount()):
                devices.append(self._device(at))
        except self._errors() as error:
            self.why = str(error)
        return tuple(device for device in devices if device is not None)

    def _device(self, at: int) -> Device | None:
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(at)
            memory = int(self._nvml.nvmlDeviceGetMemoryInfo(handle).total) // _MIB
            name, uuid = _text(self._nvml.nvmlDeviceGetName(handle)), _text(self._nvml.nvmlDeviceGetUUID(handle))
        except self._errors() as error:
            self.why = str(error)  # a failed GPU must not hide the others
            return None
        return Device(id=uuid, type=type_of(name), memory=memory)

    def use(self) -> dict[str, float]:
        """Current utilization of each GPU in percent, by UUID."""
        busy: dict[str, float] = {}
        for device in self.devices():
            try:
                handle = self._nvml.nvmlDeviceGetHandleByUUID(device.id)
                busy[device.id] = float(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
            except self._errors():
                continue  # partitioned (MIG) GPUs do not report it
        return busy

    def users(self) -> dict[str, list[tuple[int, int]]]:
        """Compute processes of each GPU with their memory in MiB, by UUID."""
        users: dict[str, list[tuple[int, int]]] = {}
        for device in self.devices():
            try:
                handle = self._nvml.nvmlDeviceGetHandleByUUID(device.id)
                running = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            except self._errors():
                continue
            users[device.id] = [(int(process.pid), int(process.usedGpuMemory or 0) // _MIB) for process in running]
        return users


def real_node(nvml: Nvml, name: str = "") -> Node | None:
    """This machine as one node with its real GPUs; None if it has none."""
    devices = nvml.devices()
    if not devices:
        return None
    cores = len(os.sched_getaffinity(0)) * 1000
    return Node(name=name or socket.gethostname(), devices=devices, cpu=cores, memory=_memory_mib())


def nodes_here(
    declared: Sequence[Mapping[str, int]] | None = None,
    *,
    nvml: Nvml | None = None,
    name: str = "",
    driver: str = _DRIVER,
) -> tuple[tuple[Node, ...], str]:
    """The nodes of this machine: real GPUs if there are any, otherwise as declared; and a text that describes them.

    Raises Refused if the driver has GPUs but NVML is not installed, unless pretend nodes are declared.
    """
    nvml = nvml or Nvml()
    node = real_node(nvml, name)
    if node is not None:
        ignored = "" if declared is None else "; declared nodes are ignored"
        return (node,), f"GPUs: {_counted(node)}{ignored}"
    present = len(os.listdir(driver)) if os.path.isdir(driver) else 0
    why = nvml.why or "NVML finds none"
    if present and not nvml.installed and declared is None:
        raise Refused(f"this machine has {present} NVIDIA GPU{'' if present == 1 else 's'}, but {why}")
    nodes = pretend_nodes(DEFAULT_NODES if declared is None else declared, prefix=name or "node")
    amounts = "; ".join(f"{node.name} {_counted(node)}" for node in nodes[:_MOST_NAMED])
    more = f" and {len(nodes) - _MOST_NAMED} more" if len(nodes) > _MOST_NAMED else ""
    return nodes, f"GPUs are simulated ({why}): {amounts}{more}"


def _counted(node: Node) -> str:
    """The GPUs of a node by type, e.g. `a100=4,v100=2`."""
    types = Counter(device.type for device in node.devices)
    return ",".join(f"{kind}={count}" for kind, count in types.items()) or "without GPUs"


def type_of(name: str) -> str:
    """The GPU type of a product name: `a100` for `NVIDIA A100-SXM4-40GB`, `rtx3090` for a GeForce RTX 3090."""
    words = [word for word in re.split(r"[\s\-_/]+", name.lower()) if word and word not in _BRANDS]
    if not words:
        return DEFAULT_TYPE
    if words[0] in ("rtx", "gtx") and len(words) > 1:
        return words[1] if words[1][0].isalpha() else "".join(words[:2])
    return words[0]


def foreign_use(node: str, users: Mapping[str, list[tuple[int, int]]], is_ours: Callable[[int], bool]) -> list[Foreign]:
    """Foreign compute processes on the GPUs of a node: one entry per GPU, which counts as fully used."""
    uses = []
    for device, processes in sorted(users.items()):
        others = [(pid, memory) for pid, memory in processes if not is_ours(pid)]
        if others:
            pids = ",".join(str(pid) for pid, _ in sorted(others))
            memory = sum(used for _, used in others)
            uses.append(
                Foreign(id=f"{node}/{device}/{pids}", node=node, devices=(device,), milli=1000, gpu_memory=memory)
            )
    return uses


def _memory_mib() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _MIB


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
