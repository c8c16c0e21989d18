"""Who commands a machine: the server of the highest epoch that was ever seen there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from levada.backends.local import files, folders
from levada.errors import Refused

EPOCH = "epoch"


class Commander:
    """What the home of a machine says of it."""

    def __init__(self, home: Path) -> None:
        self._file = home / EPOCH

    def take(self, epoch: int, last_told: Callable[[], int]) -> None:
        """Lets *epoch* or later command from now on; raises Refused where somebody newer does.

        *last_told* is the latest epoch that jobs were told something in, for whoever finds the file damaged: that is
        enough for a server that has just won its epoch.
        """
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        known = self._known()
        _compare(epoch, last_told() if known is None else known)
        files.write_json(self._file, epoch, durable=True)

    def check(self, epoch: int) -> None:
        """Raises Refused where somebody newer commands."""
        known = self._known()
        if known is None:
            raise Refused(f"{self._file} is damaged, so nobody may command here: start the server again")
        _compare(epoch, known)

    def _known(self) -> int | None:
        """None where the file is damaged."""
        try:
            return int(folders.read_file(self._file))
        except FileNotFoundError:
            return 0
        except ValueError:
            return None


def last_epoch(home: Path) -> int:
    """The highest epoch that commanded here; 0 where none did, or it cannot be read."""
    return Commander(home)._known() or 0


def _compare(epoch: int, known: int) -> None:
    if epoch < known:
        raise Refused(f"epoch {epoch} is over: epoch {known} commands here")
