"""Nodes and GPUs: found by NVML, or declared as pretend nodes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from levada.backends.local.gpus import Nvml, foreign_use, nodes_here, pretend_nodes, type_of
from levada.errors import Refused


class NvmlError(Exception):
    """The exception of NVML."""


class Driver:
    """NVML of a machine with GPUs; those in *broken* are lost."""

    NVMLError = NvmlError

    def __init__(self, *names: str, broken: tuple[int, ...] = (), starts: bool = True) -> None:
        self.names, self.broken, self.starts = names, broken, starts
        self.processes: dict[int, list[tuple[int, int]]] = {}
        self.use: dict[int, int] = {}

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.starts:
            raise NvmlError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.names)

    def nvmlDeviceGetHandleByIndex(self, at: int) -> int:  # noqa: N802
        if at in self.broken:
            raise NvmlError("GPU is lost")
        return at

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:  # noqa: N802
        return int(uuid.removeprefix("GPU-"))

    def nvmlDeviceGetMemoryInfo(self, _at: int) -> Any:  # noqa: N802
        return SimpleNamespace(total=40 << 30)

    def nvmlDeviceGetName(self, at: int) -> str:  # noqa: N802
        return self.names[at]

    def nvmlDeviceGetUUID(self, at: int) -> bytes:  # noqa: N802
        return f"GPU-{at}".encode()

    def nvmlDeviceGetUtilizationRates(self, at: int) -> Any:  # noqa: N802
        if at not in self.use:
            raise NvmlError("Not Supported")
        return SimpleNamespace(gpu=self.use[at], memory=0)

    def nvmlDeviceGetComputeRunningProcesses(self, at: int) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=pid, usedGpuMemory=mib << 20) for pid, mib in self.processes.get(at, [])]


def test_a_machine_with_gpus_is_one_node_with_them() -> None:
    nvml = Nvml(Driver("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB"))
    (node,), message = nodes_here([{"v100": 8}], nvml=nvml, name="box")
    assert node.name == "box"
    assert [(one.id, one.type, one.memory) for one in node.devices] == [
        ("GPU-0", "a100", 40960),
        ("GPU-1", "a100", 40960),
    ]
    assert node.cpu is not None
    assert node.memory is not None
    assert message == "GPUs: a100=2; declared nodes are ignored"


def test_a_lost_gpu_does_not_affect_others() -> None:
    nvml = Nvml(Driver("Tesla V100-SXM2-16GB", "Tesla V100-SXM2-16GB", broken=(0,)))
    assert [one.id for one in nvml.devices()] == ["GPU-1"]


@pytest.mark.parametrize("library", [Driver(starts=False), Driver()])
def test_a_machine_without_gpus_has_the_declared_pretend_gpus(library: Driver) -> None:
    nodes, message = nodes_here([{"a100": 2, "v100": 1}, {}], nvml=Nvml(library))
    assert [(node.name, [(one.id, one.type) for one in node.devices]) for node in nodes] == [
        ("node-0", [("0", "a100"), ("1", "a100"), ("2", "v100")]),
        ("node-1", []),
    ]
    assert [(node.cpu, node.memory) for node in nodes] == [(None, None)] * 2
    assert message.startswith("GPUs are simulated (")
    assert message.endswith("): node-0 a100=2,v100=1; node-1 without GPUs")


def test_no_pretend_gpus_with_real_gpus_without_library(tmp_path: Path) -> None:
    nvml = Nvml(Driver(starts=False))
    nvml.installed, nvml.why = False, "nvidia-ml-py is not installed: pip install 'levada[gpu]'"
    assert len(nodes_here(nvml=nvml, driver=str(tmp_path / "none"))[0]) == 2
    (tmp_path / "0000:01:00.0").mkdir()
    with pytest.raises(Refused, match="this machine has 1 NVIDIA GPU, but nvidia-ml-py is not installed: pip install"):
        nodes_here(nvml=nvml, driver=str(tmp_path))
    (node,), message = nodes_here([{"a100": 1}], nvml=nvml, driver=str(tmp_path))
    assert (node.name, message.startswith("GPUs are simulated (")) == ("node-0", True)


def test_by_default_there_are_two_nodes_of_four() -> None:
    nodes, _ = nodes_here(nvml=Nvml(Driver()))
    assert [len(node.devices) for node in nodes] == [4, 4]


def test_a_machine_without_the_real_library_has_no_gpus() -> None:
    # This machine may have the library without a driver; one with GPUs has both.
    nvml = Nvml()
    assert bool(nvml.devices()) or nvml.why


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA GeForce RTX 3090", "rtx3090"),
        ("NVIDIA RTX A6000", "a6000"),
        ("Tesla K80", "k80"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("", "gpu"),
    ],
)
def test_products_have_short_names(name: str, expected: str) -> None:
    assert type_of(name) == expected


def test_foreign_use_is_reported_per_gpu() -> None:
    driver = Driver("NVIDIA A100", "NVIDIA A100")
    driver.processes = {0: [(10, 100), (11, 50)], 1: [(12, 70)]}
    foreign = foreign_use("box", Nvml(driver).users(), lambda pid: pid in (10, 12))
    assert [(one.id, one.devices, one.milli, one.gpu_memory) for one in foreign] == [
        ("box/GPU-0/11", ("GPU-0",), 1000, 50)
    ]


def test_gpu_utilization_is_reported_where_available() -> None:
    driver = Driver("NVIDIA A100", "NVIDIA A100", "NVIDIA A100", broken=(2,))
    driver.use = {0: 97, 2: 50}
    assert Nvml(driver).use() == {"GPU-0": 97.0}
    assert Nvml(Driver(starts=False)).use() == {}


def test_pretend_nodes_are_named_by_their_position() -> None:
    assert [node.name for node in pretend_nodes([{"a": 1}, {"a": 1}], prefix="left")] == ["left-0", "left-1"]
