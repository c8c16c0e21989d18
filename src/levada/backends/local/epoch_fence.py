"""Epoch fence of a machine: only the server with the highest epoch may command it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from levada.backends.local import safe_fs, worker_files
from levada.errors import Refused

EPOCH = "epoch"


class EpochFence:
    """The highest epoch seen, stored in the home of a machine."""

    def __init__(self, home: Path) -> None:
        self._file = home / EPOCH

    def take(self, epoch: int, last_commanded: Callable[[], int]) -> None:
        """Store *epoch*, so that older ones are refused; raises Refused if a newer one is stored.

        If the file is damaged, *last_commanded* replaces it: the latest epoch in a command to any job. That is enough
        for a server that has just won its epoch.
        """
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        known = self._known()
        _compare(epoch, last_commanded() if known is None else known)
        worker_files.write_json(self._file, epoch, durable=True)

    def check(self, epoch: int) -> None:
        """Raise Refused if an epoch newer than *epoch* is stored, or the file is damaged."""
        known = self._known()
        if known is None:
            raise Refused(f"{self._file} is damaged, so commands are refused: start the server again")
        _compare(epoch, known)

    def _known(self) -> int | None:
        """The stored epoch; 0 if there is none, None if the file is damaged."""
        try:
            return int(safe_fs.read_file(self._file))
        except FileNotFoundError:
            return 0
        except ValueError:
            return None


def last_epoch(home: Path) -> int:
    """The highest epoch stored in *home*; 0 if there is none or it cannot be read."""
    return EpochFence(home)._known() or 0


def _compare(epoch: int, known: int) -> None:
    if epoch < known:
        raise Refused(
            f"command rejected: a newer server (epoch {known}) controls this machine; this one has epoch {epoch}"
        )
