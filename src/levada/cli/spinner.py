"""A message with a timer for operations that take long."""

from __future__ import annotations

import sys
import time
from threading import Event, Thread

#: Shorter operations show nothing.
_DELAY_S = 2.0


class Spinner:
    """Context manager: a terminal shows *text* and the elapsed seconds; a file gets *text* once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._done = Event()
        self._thread = Thread(target=self._show, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _show(self) -> None:
        started, is_terminal = time.monotonic(), sys.stderr.isatty()
        if self._done.wait(_DELAY_S):
            return
        if not is_terminal:
            sys.stderr.write(f"{self._text}\n")
            sys.stderr.flush()
            return
        while True:
            sys.stderr.write(f"\r\x1b[K{self._text} {time.monotonic() - started:.0f} s")
            sys.stderr.flush()
            if self._done.wait(1.0):
                break
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
