"""Every error that Levada raises on purpose.

    LevadaError
    ├── BadInput      a file, an option or a body is wrong; carries one `Fault` per mistake
    ├── NotFound      a named thing does not exist
    ├── Refused       the request is understood and not allowed
    └── NoServer      no Levada server answers

The core raises only for a programmer's mistake; a job that must wait gets a reason, never an exception.
"""

from collections.abc import Iterable
from typing import NamedTuple


class Fault(NamedTuple):
    """One mistake in an input: where it is and what is wrong with it."""

    path: str  #: `jobs[3].min`; empty when the input as a whole is meant
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}" if self.path else self.text


class LevadaError(Exception):
    """Root of the tree; its text is one line, meant for a person."""


class BadInput(LevadaError):
    """The input has these faults, all of them, in the order of the input."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults: list[Fault] = list(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))

    @classmethod
    def one(cls, text: str, path: str = "") -> "BadInput":
        """An error of a single fault."""
        return cls([Fault(path, text)])


class NotFound(LevadaError):
    """A named thing does not exist."""


class Refused(LevadaError):
    """The request is understood and not allowed."""


class NoServer(LevadaError):
    """No Levada server answers."""
