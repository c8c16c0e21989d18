"""Ctrl-C at the wrong moment: between making something and knowing that it has to be tidied up."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _not_ignored() -> list[signal.Signals]:
    """What is ignored, as under nohup, stays so."""
    return [number for number in _ENDS if signal.getsignal(number) is not signal.SIG_IGN]


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """What would end this process while the block runs ends it right after."""
    heard: list[int] = []
    before = {number: signal.signal(number, lambda came, _: heard.append(came)) for number in _not_ignored()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if heard:
            signal.raise_signal(heard[0])


@contextlib.contextmanager
def tidied_up() -> Iterator[None]:
    """For a block that tidies up at its end: any of the ends is one KeyboardInterrupt, and further ones are not heard.

    Ctrl-C reaches all processes of a terminal, and people press it until something happens; who tidies up must not be
    stopped by it, nor end with another exit code where it comes while the interpreter goes down.
    """
    interrupted = False

    def once(_came: int, _frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        for number in _ENDS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, once) for number in _not_ignored()}
    try:
        yield
    finally:
        if not interrupted:
            for number, handler in before.items():
                signal.signal(number, handler)
