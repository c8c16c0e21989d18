"""Jobs that are over, as columns in the order of their ends: what reports are made from."""

from __future__ import annotations

from levada.core.commands import JobsEnded


class Ended:
    """What became of each job; an engine forgets those that are over."""

    def __init__(self) -> None:
        self.number: list[int] = []
        self.id: list[str] = []
        #: Succeeded, Failed or Cancelled.
        self.phase: list[int] = []
        #: inf: it never ran.
        self.first_started: list[float] = []
        self.finished: list[float] = []
        self.waiting_s: list[float] = []
        self.running_s: list[float] = []
        self.gpu_seconds: list[float] = []
        self.resizes: list[int] = []
        self.moves: list[int] = []

    def __len__(self) -> int:
        return len(self.number)

    def add(self, told: JobsEnded) -> None:
        """The engine told that jobs are over."""
        self.number += told.number.tolist()
        self.id += told.id
        self.phase += told.phase.tolist()
        self.first_started += told.first_started.tolist()
        self.finished += [told.finished] * len(told.id)
        self.waiting_s += told.waiting_s.tolist()
        self.running_s += told.running_s.tolist()
        self.gpu_seconds += told.gpu_seconds.tolist()
        self.resizes += told.resizes.tolist()
        self.moves += told.moves.tolist()
