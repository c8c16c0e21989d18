"""Questions to the person at the terminal. Scripts are never asked: they say what they mean with a flag."""

from __future__ import annotations

import sys


def is_asked() -> bool:
    """Whether somebody is there to answer."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def confirm(warning: str, question: str) -> bool:
    """Print *warning* and ask; False without a terminal, at any answer but yes and at the end of input."""
    if not is_asked():
        return False
    sys.stderr.write(f"{warning}\n{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
