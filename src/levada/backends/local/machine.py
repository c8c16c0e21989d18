"""A machine with real GPUs, looked at now and then: which there are, and what others do with them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from levada.backends.local import mps, procfs
from levada.backends.local.devices import Nvml, foreign_use
from levada.core.cluster import Foreign, Node

_log = logging.getLogger(__name__)
_LOOK_S = 5.0
_REAL = ("GPU-", "MIG-")


def is_real(nodes: Sequence[Node]) -> bool:
    """Whether these nodes have real GPUs, which go by their UUIDs."""
    return any(device.id.startswith(_REAL) for node in nodes for device in node.devices)


class Machine:
    """The one node of this machine. *tell* hears of changes: the node, and what others use of it."""

    def __init__(
        self, node: Node, home: Path, tell: Callable[[Node, tuple[Foreign, ...]], None], nvml: Nvml | None = None
    ) -> None:
        self.node = node
        self._known = node.devices
        self._jobs = str(home.absolute() / "jobs")
        self._tell, self._nvml = tell, nvml or Nvml()
        #: None before the first look, which is told in any case: what was known before may be gone.
        self._foreign: tuple[Foreign, ...] | None = None

    async def run(self) -> None:
        """Looks for ever: what could not be seen, or told, is tried again."""
        told = ""
        while True:
            try:
                node, foreign = await asyncio.to_thread(self._look)
                if (node, foreign) != (self.node, self._foreign):
                    self._tell(node, foreign)
                    self.node, self._foreign = node, foreign
                told = ""
            except Exception as trouble:
                if str(trouble) != told:
                    told = str(trouble)
                    _log.exception("the GPUs of %s could not be looked at", self.node.name)
            await asyncio.sleep(_LOOK_S)

    def _look(self) -> tuple[Node, tuple[Foreign, ...]]:
        there = {device.id for device in self._nvml.devices()}
        # One that is not seen any more is ill: somebody may still hold it.
        devices = tuple(msgspec.structs.replace(device, healthy=device.id in there) for device in self._known)
        foreign = foreign_use(self.node.name, self._nvml.users(), self._is_ours)
        return msgspec.structs.replace(self.node, devices=devices), tuple(foreign)

    def _is_ours(self, pid: int) -> bool:
        return procfs.environment(pid).get("LEVADA_STATE_DIR", "").startswith(self._jobs)


def start_mps(nodes: Sequence[Node], home: Path) -> str:
    """Where parts of GPUs are served on this machine; empty where there are no real ones, or no daemon for it."""
    return mps.start(home) if is_real(nodes) else ""
