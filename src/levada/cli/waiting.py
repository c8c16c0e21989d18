"""A sign of life while something takes long that has no progress to show."""

from __future__ import annotations

import sys
import time
from threading import Event, Thread

#: What is over sooner needs no sign.
_PATIENCE_S = 2.0


class Waiting:
    """While it is entered, a terminal shows *text* and the seconds that have passed; a file gets it once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._over = Event()
        self._teller = Thread(target=self._tell, daemon=True)

    def __enter__(self) -> None:
        self._teller.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._teller.join()

    def _tell(self) -> None:
        began, shows = time.monotonic(), sys.stderr.isatty()
        if self._over.wait(_PATIENCE_S):
            return
        if not shows:
            sys.stderr.write(f"{self._text}\n")
            sys.stderr.flush()
            return
        while True:
            sys.stderr.write(f"\r\x1b[K{self._text} {time.monotonic() - began:.0f} s")
            sys.stderr.flush()
            if self._over.wait(1.0):
                break
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
