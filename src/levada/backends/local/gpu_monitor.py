"""GPU monitor: health of real GPUs and their use by foreign processes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from levada.backends.local import mps, procfs
from levada.backends.local.gpus import Nvml, foreign_use
from levada.core.cluster import Foreign, Node

_log = logging.getLogger(__name__)
_LOOK_S = 5.0
_REAL = ("GPU-", "MIG-")


def is_real(nodes: Sequence[Node]) -> bool:
    """Whether these nodes have real GPUs, whose ids are UUIDs."""
    return any(device.id.startswith(_REAL) for node in nodes for device in node.devices)


class GpuMonitor:
    """Polls the GPUs of this machine's node every 5 s.

    *on_change* gets the node and its foreign use whenever one of them has changed.
    """

    def __init__(
        self, node: Node, home: Path, on_change: Callable[[Node, tuple[Foreign, ...]], None], nvml: Nvml | None = None
    ) -> None:
        self.node = node
        self._known = node.devices
        self._jobs = str(home.absolute() / "jobs")
        self._on_change, self._nvml = on_change, nvml or Nvml()
        #: None before the first poll, which is always reported: what the engine knows may be outdated.
        self._foreign: tuple[Foreign, ...] | None = None

    async def run(self) -> None:
        """Poll until cancelled; errors are logged once and retried."""
        logged = ""
        while True:
            try:
                node, foreign = await asyncio.to_thread(self._look)
                if (node, foreign) != (self.node, self._foreign):
                    self._on_change(node, foreign)
                    self.node, self._foreign = node, foreign
                logged = ""
            except Exception as error:
                if str(error) != logged:
                    logged = str(error)
                    _log.exception("polling GPUs of %s failed", self.node.name)
            await asyncio.sleep(_LOOK_S)

    def _look(self) -> tuple[Node, tuple[Foreign, ...]]:
        present = {device.id for device in self._nvml.devices()}
        # A missing GPU is unhealthy but stays in the node: a job may still hold it.
        devices = tuple(msgspec.structs.replace(device, healthy=device.id in present) for device in self._known)
        foreign = foreign_use(self.node.name, self._nvml.users(), self._is_ours)
        return msgspec.structs.replace(self.node, devices=devices), tuple(foreign)

    def _is_ours(self, pid: int) -> bool:
        return procfs.environment(pid).get("LEVADA_STATE_DIR", "").startswith(self._jobs)


def start_mps(nodes: Sequence[Node], home: Path) -> str:
    """Start the MPS daemon for fractions of GPUs; returns its pipe folder, or "" without real GPUs or a daemon."""
    return mps.start(home) if is_real(nodes) else ""
