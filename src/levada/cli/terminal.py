"""Escape control sequences in untrusted text that is written to a terminal.

A job's output, names, labels and reasons may hold escape sequences that clear the screen, change the title or type into
the shell. On a terminal every control character is written as e.g. `\\x1b`; pipes and files get the original text.
"""

from __future__ import annotations

import re

#: Group 1: Levada's own styles, which pass. Group 2: control characters except newline and tab, and characters that
#: change the text direction.
_CONTROL = re.compile("(\x1b\\[(?:0|1|97;[0-9]{1,3})m)|([\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069])")
_ANY_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def escaped(text: str) -> str:
    """Escape control characters except newlines, tabs and Levada's own styles."""
    return _CONTROL.sub(lambda match: match[1] or _escape(match[2]), text)


def escaped_line(text: str) -> str:
    """Escape one line of a job's output; keeps only the text after the last carriage return (progress bars)."""
    last = next((part for part in reversed(text.split("\r")) if part), "")
    return _ANY_CONTROL.sub(lambda match: _escape(match[0]), last)


def _escape(character: str) -> str:
    # Above 0x7e, use the escapes of JSON.
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x20 else f"\\u{number:04x}"
