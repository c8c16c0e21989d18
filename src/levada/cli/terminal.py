"""Text of others on a terminal: control sequences are shown, not obeyed.

A job's output, names, labels and reasons may hold escape sequences that clear the screen, change the title or type into
the shell. On a terminal every control character is written as `\\x1b`; into a pipe or a file it goes as it is.
"""

from __future__ import annotations

import re

#: Levada's own styles, which may pass; then all control characters but newline and tab, and those that turn the
#: direction of writing around.
_CONTROL = re.compile("(\x1b\\[(?:0|1|97;[0-9]{1,3})m)|([\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069])")
_ANY_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def shown(text: str) -> str:
    """*text* of Levada's own, which may quote others and may have Levada's styles."""
    return _CONTROL.sub(lambda match: match[1] or _named(match[2]), text)


def shown_line(text: str) -> str:
    """One line of a job's output; of a line that carriage returns write over, as progress bars do, the last state."""
    last = next((part for part in reversed(text.split("\r")) if part), "")
    return _ANY_CONTROL.sub(lambda match: _named(match[0]), last)


def _named(character: str) -> str:
    # Above 0x7e as JSON has it, where such a character may stand as it is.
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x20 else f"\\u{number:04x}"
