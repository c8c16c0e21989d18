"""Named integer codes for columns."""

from __future__ import annotations

from functools import cache


class Codes:
    """Base of named codes. They are plain ints: numpy compares columns with enum members five times slower."""

    @classmethod
    def names(cls) -> dict[str, int]:
        """All codes by name."""
        return {name: number for name, number in vars(cls).items() if name.isupper()}

    @classmethod
    def numbers(cls) -> list[int]:
        """All codes."""
        return list(cls.names().values())

    @classmethod
    @cache
    def name(cls, number: int) -> str:
        """The name of a code."""
        for name, known in cls.names().items():
            if known == number:
                return name
        raise ValueError(f"{number} is not a {cls.__name__}")
