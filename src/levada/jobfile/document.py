"""A checked document: what it asks for in Levada's own terms, and what its user wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from levada.jobfile.model import Job, Queue

#: The variable in which Voda tells a job its name.
JOB_NAME = "JOB_NAME"


@dataclass(frozen=True)
class Serving:
    """Pods that answer requests: training makes room for them."""

    replicas: int = 1


@dataclass(frozen=True)
class Document:
    """One document of a file."""

    #: Job, Queue, MPIJob, PyTorchJob, TFJob, Pod or Deployment.
    kind: str
    name: str
    content: Job | Queue | Serving
    #: As its user wrote it; what runs on Kubernetes is this.
    source: dict[str, Any] = field(repr=False)
    #: Who may share a GPU with whom: affinity, anti_affinity, exclusion.
    tags: Mapping[str, str] = field(default_factory=dict)
    #: Why it can run on Kubernetes only; empty where it can run anywhere.
    needs_cluster: str = ""

    @property
    def is_job(self) -> bool:
        """Whether it is a job, of whatever kind."""
        return isinstance(self.content, Job)

    @property
    def keeps_name(self) -> bool:
        """Whether its name is its id: the processes of a TFJob find each other by it."""
        return self.kind == "TFJob"
