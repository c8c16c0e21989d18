"""History of a turn: lines for users, ended jobs and progress events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from levada.api.types import JobView
from levada.backends.protocol import Note
from levada.core.commands import JobsEnded
from levada.core.events import Event, JobEvent, Progress
from levada.core.reasons import with_phase
from levada.core.types import Ints
from levada.engine import Engine
from levada.engine.replay import CommandedState, commanded
from levada.live import views
from levada.live.change_detector import ChangeDetector
from levada.live.records import JobRecord, JobRecords
from levada.live.store import HistoryLine

#: A job that has ended, its end time and its final view.
End = tuple[JobRecord, float, JobView]


class HistoryPosition(NamedTuple):
    """A position in the history, for `HistoryWriter.restore`."""

    line: int
    #: Watched columns of the jobs, see `ChangeDetector`.
    last: Ints
    leaving: Mapping[str, JobView]


class HistoryWriter:
    """Derives the history from the state of the engine before and after each turn."""

    def __init__(self, engine: Engine, records: JobRecords, last_line: int) -> None:
        self._engine, self._records, self._line = engine, records, last_line
        self._detector = ChangeDetector(engine.query)
        #: Numbers of the jobs that the events of the turn name.
        self._mentioned: set[int] = set()
        #: Last views of jobs whose end is not stored yet, by id.
        self.leaving: dict[str, JobView] = {}

    def position(self) -> HistoryPosition:
        """Return the current position."""
        return HistoryPosition(self._line, self._detector.last, dict(self.leaving))

    def restore(self, position: HistoryPosition) -> None:
        """Undo everything since *position*."""
        self._line, self._detector.last, self.leaving = position.line, position.last, dict(position.leaving)

    def begin(self, events: Sequence[Event], notes: Sequence[Note], now: float) -> dict[str, JobView]:
        """Return views of the jobs that these events may end, before the engine drops them; records exit codes."""
        for note in notes:
            record = self._records.by_id.get(note.job)
            if record is not None and "exit_code" in note.data:
                record.exit_code = note.data["exit_code"]
                record.failure = (note.text, record.exit_code)
            elif record is not None and "cause" in note.data:
                record.failure = (note.data["cause"], note.data.get("lost_exit_code"))
        numbers: set[int] = set()
        for event in events:
            if isinstance(event, JobEvent):
                numbers.update(event.number.tolist())
        self._mentioned = numbers
        last_views = {}
        for number in numbers:
            record = self._records.by_number.get(number)
            job = None if record is None else self._engine.query.job(record.id)
            if record is not None and job is not None:
                last_views[record.id] = views.living_job(record, self._engine.query, job, now, [], None)
        return last_views

    def progress_events(self, progress: Mapping[int, float], now: float) -> list[Event]:
        """Return a `Progress` event for reported steps, and update the rates of the records."""
        if not progress:
            return []
        numbers = np.fromiter(progress, np.int64, len(progress))
        steps = np.fromiter(progress.values(), np.float64, len(progress))
        jobs = self._engine.query.jobs
        slots = jobs.find(numbers)
        known = (slots >= 0) & np.isfinite(steps) & (steps >= 0)
        numbers, steps, slots = numbers[known], steps[known], slots[known]
        new_steps, since = steps - jobs.steps_done[slots], jobs.reported[slots]
        # Ignore the first report after a start or resize: its interval includes the operation.
        seconds = np.where(since > jobs.resized[slots], now - since, 0.0)
        for number, made, elapsed_s in zip(numbers.tolist(), new_steps.tolist(), seconds.tolist(), strict=True):
            if (record := self._records.by_number.get(number)) is not None:
                record.progressed(made, elapsed_s)
        return [Progress(at=now, number=numbers, steps=steps)] if len(numbers) else []

    def commanded_states(self) -> tuple[CommandedState, ...]:
        """Return the commanded states of jobs that the turn may have changed; call it after `lines`."""
        return tuple(commanded(self._engine, sorted(self._mentioned.union(self._detector.moved))).values())

    def ended_jobs(self, commands: Sequence[JobsEnded], before: Mapping[str, JobView]) -> list[End]:
        """Return the jobs that ended in this turn with their final views; *before*: result of `begin`."""
        ended = []
        for command in commands:
            for row, number in enumerate(command.number.tolist()):
                record = self._records.by_number.get(number)
                if record is None:
                    continue
                last = before.get(record.id) or views.plain_job(record)
                self.leaving[record.id] = last
                ended.append((record, command.finished, views.ended_job(record, command, row, last)))
        return ended

    def mark_stored(self, ended: Sequence[End]) -> None:
        """Set the results of these jobs: their end is stored."""
        for record, at, result in ended:
            record.ended, record.result = at, result
            del self.leaving[record.id]

    def lines(self, notes: Sequence[Note], ended: Sequence[End], now: float) -> list[HistoryLine]:
        """Return the history lines of a turn."""
        lines: list[HistoryLine] = []

        def add(job: str | None, kind: str, text: str, data: Mapping[str, Any]) -> None:
            self._line += 1
            lines.append(HistoryLine(id=self._line, at=now, job=job, type=kind, text=text, data=data))

        for change in self._detector.changes(self._engine.query):
            record = self._records.by_number.get(change.number)
            if record is not None:
                add(record.id, change.type, change.text, change.data)
        for note in notes:
            add(note.job or None, note.type, note.text, note.data)
        for record, _, result in ended:
            reason = result["reason"]
            assert reason is not None
            data = {"phase": result["phase"], "reason": reason["code"], "exit_code": result["exit_code"]}
            add(record.id, "phase", with_phase(result["phase"], reason["text"]), data)
        return lines
