"""Signal handling around critical sections and cleanup."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _not_ignored() -> list[signal.Signals]:
    """Return the signals to handle; those that are ignored, e.g. under nohup, stay ignored."""
    return [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """Deliver signals that arrive during the block right after it."""
    pending: list[int] = []
    before = {number: signal.signal(number, lambda received, _: pending.append(received)) for number in _not_ignored()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if pending:
            signal.raise_signal(pending[0])


@contextlib.contextmanager
def cleanup_protected() -> Iterator[None]:
    """Turn the first signal during the block into KeyboardInterrupt and ignore further ones.

    Users press Ctrl-C several times; that must neither interrupt the cleanup nor change the exit code while the
    interpreter shuts down.
    """
    interrupted = False

    def once(_received: int, _frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, once) for number in _not_ignored()}
    try:
        yield
    finally:
        if not interrupted:
            for number, handler in before.items():
                signal.signal(number, handler)
