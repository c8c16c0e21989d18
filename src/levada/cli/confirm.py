"""Confirmation prompts on a terminal. Scripts are never asked; they pass a flag."""

from __future__ import annotations

import sys


def is_interactive() -> bool:
    """Whether stdin and stderr are a terminal."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def confirm(warning: str, question: str) -> bool:
    """Print *warning* and ask; False without a terminal, at the end of input and for answers other than yes."""
    if not is_interactive():
        return False
    sys.stderr.write(f"{warning}\n{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
