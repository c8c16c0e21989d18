"""Folders that nobody needs any more: gone from their place at once, and removed beside the loop, however large."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from pathlib import Path

from levada.backends.local import folders


class Waste:
    """One place for them, on the file system that they are on."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._removing: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Removes what another could not, before it ended."""
        with contextlib.suppress(FileNotFoundError):
            for left in list(self._place.iterdir()):
                self._remove(left)

    def take(self, folder: Path) -> None:
        """Its name is free when this returns; raises OSError where it cannot be moved."""
        if folder.exists():
            self._place.mkdir(parents=True, exist_ok=True, mode=0o700)
            aside = self._place / secrets.token_hex(8)
            folder.rename(aside)
            self._remove(aside)

    async def close(self) -> None:
        """Waits for nothing: what is left goes with the next `open`."""
        for task in self._removing:
            task.cancel()
        await asyncio.gather(*self._removing, return_exceptions=True)

    def _remove(self, folder: Path) -> None:
        task = asyncio.create_task(asyncio.to_thread(folders.remove, folder))
        self._removing.add(task)
        task.add_done_callback(self._removing.discard)
