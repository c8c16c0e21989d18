"""Trash for deleted folders: moved away at once, removed in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from pathlib import Path

from levada.backends.local import safe_fs


class Trash:
    """A trash folder, on the same file system as the folders it takes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._removing: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Remove what an earlier process left in the trash."""
        with contextlib.suppress(FileNotFoundError):
            for left in list(self._folder.iterdir()):
                self._remove(left)

    def take(self, folder: Path) -> None:
        """Move *folder* to the trash, so that its name is free on return; raises OSError if it cannot be moved."""
        if folder.exists():
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            moved = self._folder / secrets.token_hex(8)
            folder.rename(moved)
            self._remove(moved)

    async def close(self) -> None:
        """Cancel removals; the next `open` continues them."""
        for task in self._removing:
            task.cancel()
        await asyncio.gather(*self._removing, return_exceptions=True)

    def _remove(self, folder: Path) -> None:
        task = asyncio.create_task(asyncio.to_thread(safe_fs.remove, folder))
        self._removing.add(task)
        task.add_done_callback(self._removing.discard)
