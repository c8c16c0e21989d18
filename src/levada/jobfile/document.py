"""A checked document: the job, queue or serving pods, and its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from levada.jobfile.model import API_VERSION, Job, Queue

#: The variable with the job's name in Voda.
JOB_NAME = "JOB_NAME"


@dataclass(frozen=True)
class Serving:
    """Pods that answer requests; training makes room for them."""

    replicas: int = 1


@dataclass(frozen=True)
class Document:
    """One document of a file."""

    #: Job, Queue, MPIJob, PyTorchJob, TFJob, JobSet, TrainJob, Pod or Deployment.
    kind: str
    name: str
    content: Job | Queue | Serving
    #: As the user wrote it; runs unchanged on Kubernetes.
    source: dict[str, Any] = field(repr=False)
    #: Tags for GPU sharing: affinity, anti_affinity, exclusion.
    tags: Mapping[str, str] = field(default_factory=dict)
    #: Why it can run only on Kubernetes; empty if it can run anywhere.
    needs_cluster: str = ""
    #: Whether the operator of the job changes the number of its workers while they run.
    elastic: bool = False
    #: Cores (1/1000ths) and MiB of a launcher that has a pod of its own.
    launcher: tuple[int, int] | None = None

    @property
    def is_own(self) -> bool:
        """Whether Levada itself makes the workers of the job."""
        return self.source.get("apiVersion") == API_VERSION

    @property
    def is_job(self) -> bool:
        """Whether it is a job of any kind."""
        return isinstance(self.content, Job)

    @property
    def keeps_name(self) -> bool:
        """Whether its name is its id: the processes of a TFJob find each other by it."""
        return self.kind == "TFJob"
