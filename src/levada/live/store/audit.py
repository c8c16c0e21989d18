"""The audit log: write requests and their outcomes."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from sqlalchemy import insert, select

from levada.live.store import tables
from levada.live.store.database import Database
from levada.live.store.values import AuditEntry


class AuditLog:
    """Audit log of one store."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queue: list[tuple[dict[str, Any], asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def append(self, entry: AuditEntry) -> None:
        """Store an entry, also for a refused write."""
        row = entry.row(time.time())
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((row, done))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())
        await done

    async def _write(self) -> None:
        """Write queued entries; those that arrive during a commit share the next one."""
        while self._queue:
            entries, self._queue = self._queue, []
            try:
                await self._insert([row for row, _ in entries])
            except Exception as error:
                for _, done in entries:
                    if not done.done():
                        done.set_exception(error)
                continue
            for _, done in entries:
                if not done.done():
                    done.set_result(None)

    async def _insert(self, rows: list[dict[str, Any]]) -> None:
        await self._database.write(lambda connection: connection.execute(insert(tables.audit), rows))

    async def last(self, limit: int) -> list[dict[str, Any]]:
        """Return the last entries, newest last."""
        query = select(tables.audit).order_by(tables.audit.c.id.desc()).limit(limit)
        rows = await self._database.read(lambda connection: connection.execute(query).mappings().all())
        return [dict(row) for row in reversed(rows)]
