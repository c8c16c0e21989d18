"""What a turn changes in memory before it is stored, so that a turn that is not stored can be taken back.

The engine answers before its turn is written down. A request whose turn the store does not take is refused, and then
neither the engine nor the lists of jobs may keep anything of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from levada.engine import Engine
from levada.live.records import Record, Records
from levada.live.story import Story


class Savepoint:
    """The engine, the history and the jobs as they were before a turn. Costs O(active jobs + devices)."""

    def __init__(self, engine: Engine, story: Story, records: Records, fresh: Sequence[Record]) -> None:
        """*fresh*: the jobs that the turn adds to *records*."""
        self._engine, self._story, self._records, self._fresh = engine, story, records, fresh
        self._other = engine.mark(), story.mark()

    def undo(self) -> None:
        """Everything is as it was before the turn."""
        self._swap()
        for record in self._fresh:
            self._records.drop(record)

    def redo(self) -> None:
        """After `undo`: the turn turned out to be stored."""
        self._swap()
        for record in self._fresh:
            self._records.add(record)

    def _swap(self) -> None:
        other, mark = self._other
        self._engine.swap(other)
        self._other = other, self._story.mark()
        self._story.restore(mark)
