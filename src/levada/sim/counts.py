"""How many rounds a run of the default mechanism had."""

from __future__ import annotations


class RoundCounts:
    """Rounds of the default mechanism."""

    def __init__(self) -> None:
        #: Rounds in which somebody decided, and jobs in all rounds, each once in each.
        self.rounds = self.job_rounds = self.decisions = 0
        self.begun: float = -1.0
        self._at, self._jobs = 0.0, 0

    def add(self, now: float, jobs: int, round_s: float) -> None:
        """Another round; those that were passed over because nothing would change in them count for their jobs."""
        quiet = max(round((now - self._at) / round_s) - 1, 0)
        self.job_rounds += quiet * self._jobs + jobs
        self.rounds += 1
        self._at, self._jobs = now, jobs
