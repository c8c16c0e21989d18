"""Backends of a server: this machine and its agents, or a Kubernetes cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from levada.backends.local.backend import LocalBackend
from levada.backends.local.gpus import Nvml, nodes_here
from levada.backends.protocol import ClusterBackend
from levada.errors import MissingExtra
from levada.live.store import Store

LOCAL, KUBERNETES = "local", "kubernetes"


class ChosenBackend(NamedTuple):
    """A backend, and what a server needs to know about it."""

    backend: ClusterBackend
    #: What it runs on, for users.
    text: str
    #: Utilization of the GPUs of this machine, if it can be measured.
    gpu_use: Callable[[], Mapping[str, float]] | None = None


class BackendFactory(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of all backends."""

    folder: Path
    #: GPUs by type of each simulated node.
    nodes: Sequence[Mapping[str, int]] | None
    #: URL under which workers reach the server.
    server_url: str
    checkpoints: Path | None
    #: Makes the token of a worker from job, number and worker.
    sign: Callable[[str, int, str], str]
    kubeconfig: str | None
    lease_age_s: Callable[[], float]

    def local(self) -> ChosenBackend:
        """Return the backend for the GPUs of this machine and of its agents, or for simulated nodes."""
        nvml = Nvml()
        nodes, text = nodes_here(self.nodes, nvml=nvml)
        backend = LocalBackend(
            self.folder, nodes, server_url=self.server_url, token_for=self.sign, checkpoints=self.checkpoints
        )
        return ChosenBackend(backend, text, nvml.use if nvml.devices() else None)

    async def kubernetes(self, store: Store) -> ChosenBackend:
        """Return the backend for a cluster, in which *store* marks the jobs of this server."""
        try:
            from levada.backends.kubernetes.connection import Connection
        except ModuleNotFoundError:
            raise MissingExtra("levada serve --backend kubernetes", "kubernetes") from None
        from levada.backends.kubernetes.backend import KubernetesBackend

        api = Connection(self.kubeconfig)
        backend = KubernetesBackend(api, await store.identity(), lease_age_s=self.lease_age_s)
        return ChosenBackend(backend, f"Kubernetes, namespace {api.namespace}")
