"""Questions to the person at the terminal. Scripts are never asked: they say what they mean with a flag."""

from __future__ import annotations

import sys


def confirm(warning: str, question: str) -> bool:
    """Print *warning* and ask; False without a terminal, at any answer but yes and at the end of input."""
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    sys.stderr.write(f"{warning}\n{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
