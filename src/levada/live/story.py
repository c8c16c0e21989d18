"""What a turn tells people: lines of history, jobs that are over, and how far jobs are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from levada.backends.protocol import Note
from levada.core.commands import JobsEnded
from levada.core.events import Event, JobEvent, Progress
from levada.core.types import Ints
from levada.engine import Engine
from levada.engine.replay import CommandedState, commanded
from levada.live import views
from levada.live.chronicle import Chronicle
from levada.live.records import Record, Records
from levada.live.store import HistoryLine

#: A job that has ended, when, and what stays to be seen of it.
End = tuple[Record, float, dict[str, Any]]


class Mark(NamedTuple):
    """A point in the story."""

    line: int
    #: How jobs looked, for the next comparison.
    last: Ints
    leaving: Mapping[str, dict[str, Any]]


class Story:
    """Follows the engine from turn to turn."""

    def __init__(self, engine: Engine, records: Records, last_line: int) -> None:
        self._engine, self._records, self._line = engine, records, last_line
        self._chronicle = Chronicle(engine.query)
        self._mentioned: set[int] = set()
        #: How jobs that have just ended looked before: that they have is true once it is written down.
        self.leaving: dict[str, dict[str, Any]] = {}

    def mark(self) -> Mark:
        """Where the story is; `restore` goes back there."""
        return Mark(self._line, self._chronicle.last, dict(self.leaving))

    def restore(self, mark: Mark) -> None:
        """Forgets what was told since *mark*."""
        self._line, self._chronicle.last, self.leaving = mark.line, mark.last, dict(mark.leaving)

    def begin(self, told: Sequence[Event], notes: Sequence[Note], now: float) -> dict[str, dict[str, Any]]:
        """How the jobs look that these events may end: after that the engine has forgotten them."""
        for note in notes:
            record = self._records.by_id.get(note.job)
            if record is not None and "exit_code" in note.data:
                record.exit_code = note.data["exit_code"]
                record.failure = (note.text, record.exit_code)
            elif record is not None and "cause" in note.data:
                record.failure = (note.data["cause"], note.data.get("lost_exit_code"))
        numbers: set[int] = set()
        for event in told:
            if isinstance(event, JobEvent):
                numbers.update(event.number.tolist())
        self._mentioned = numbers
        found = {}
        for number in numbers:
            record = self._records.by_number.get(number)
            job = None if record is None else self._engine.query.job(record.id)
            if record is not None and job is not None:
                found[record.id] = views.living_job(record, self._engine.query, job, now, [], None)
        return found

    def moved(self, progress: Mapping[int, float], now: float) -> list[Event]:
        """How far jobs are, for the engine; their records get the rate since the last report."""
        if not progress:
            return []
        numbers = np.fromiter(progress, np.int64, len(progress))
        steps = np.fromiter(progress.values(), np.float64, len(progress))
        jobs = self._engine.query.jobs
        slots = jobs.find(numbers)
        known = (slots >= 0) & np.isfinite(steps) & (steps >= 0)
        numbers, steps, slots = numbers[known], steps[known], slots[known]
        more, since = steps - jobs.steps_done[slots], jobs.reported[slots]
        # The first report after a start or resize is no measure: it includes the time that this took.
        seconds = np.where(since > jobs.resized[slots], now - since, 0.0)
        for number, made, passed in zip(numbers.tolist(), more.tolist(), seconds.tolist(), strict=True):
            if (record := self._records.by_number.get(number)) is not None:
                record.progressed(made, passed)
        return [Progress(at=now, number=numbers, steps=steps)] if len(numbers) else []

    def standings(self) -> tuple[CommandedState, ...]:
        """How the jobs stand that may stand otherwise than before the turn; call it after `lines`."""
        return tuple(commanded(self._engine, sorted(self._mentioned.union(self._chronicle.moved))).values())

    def ended(self, commands: Sequence[JobsEnded], before: Mapping[str, dict[str, Any]]) -> list[End]:
        """Jobs that are over, as they will be shown; *before* is what `begin` gave."""
        found = []
        for command in commands:
            for row, number in enumerate(command.number.tolist()):
                record = self._records.by_number.get(number)
                if record is None:
                    continue
                last = before.get(record.id) or views.plain_job(record)
                self.leaving[record.id] = last
                found.append((record, command.finished, views.ended_job(record, command, row, last)))
        return found

    def is_written(self, ended: Sequence[End]) -> None:
        """From now on these are over."""
        for record, at, result in ended:
            record.ended, record.result = at, result
            del self.leaving[record.id]

    def lines(self, notes: Sequence[Note], ended: Sequence[End], now: float) -> list[HistoryLine]:
        """The history of a turn."""
        lines: list[HistoryLine] = []

        def say(job: str | None, kind: str, text: str, data: Mapping[str, Any]) -> None:
            self._line += 1
            lines.append(HistoryLine(id=self._line, at=now, job=job, type=kind, text=text, data=data))

        for happened in self._chronicle.changes(self._engine.query):
            record = self._records.by_number.get(happened.number)
            if record is not None:
                say(record.id, happened.type, happened.text, happened.data)
        for note in notes:
            say(note.job or None, note.type, note.text, note.data)
        for record, _, result in ended:
            data = {"phase": result["phase"], "reason": result["reason"]["code"], "exit_code": result["exit_code"]}
            say(record.id, "phase", f"{result['phase']}: {result['reason']['text']}", data)
        return lines
