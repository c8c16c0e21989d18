"""Completed jobs as columns, in the order of their ends: the input of reports."""

from __future__ import annotations

from levada.core.commands import JobsEnded


class CompletedJobs:
    """Records of jobs that ended; the engine drops them."""

    def __init__(self) -> None:
        self.number: list[int] = []
        self.id: list[str] = []
        #: Succeeded, Failed or Cancelled.
        self.phase: list[int] = []
        #: inf: never ran.
        self.first_started: list[float] = []
        self.finished: list[float] = []
        self.waiting_s: list[float] = []
        self.running_s: list[float] = []
        self.gpu_seconds: list[float] = []
        self.resizes: list[int] = []
        self.moves: list[int] = []

    def __len__(self) -> int:
        return len(self.number)

    def add(self, jobs: JobsEnded) -> None:
        """Record jobs that ended."""
        self.number += jobs.number.tolist()
        self.id += jobs.id
        self.phase += jobs.phase.tolist()
        self.first_started += jobs.first_started.tolist()
        self.finished += [jobs.finished] * len(jobs.id)
        self.waiting_s += jobs.waiting_s.tolist()
        self.running_s += jobs.running_s.tolist()
        self.gpu_seconds += jobs.gpu_seconds.tolist()
        self.resizes += jobs.resizes.tolist()
        self.moves += jobs.moves.tolist()
