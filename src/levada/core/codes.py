"""Names for the whole numbers that stand in columns."""

from __future__ import annotations

from functools import cache


class Codes:
    """`Phase.RUNNING` is a plain int: numpy takes five times as long to compare a column with a member of an enum."""

    @classmethod
    def names(cls) -> dict[str, int]:
        """All numbers, by name."""
        return {name: number for name, number in vars(cls).items() if name.isupper()}

    @classmethod
    def numbers(cls) -> list[int]:
        """All numbers."""
        return list(cls.names().values())

    @classmethod
    @cache
    def name(cls, number: int) -> str:
        """The name of a number."""
        for name, known in cls.names().items():
            if known == number:
                return name
        raise ValueError(f"{number} is no {cls.__name__}")
