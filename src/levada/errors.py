"""Every error that Levada raises on purpose.

    LevadaError
    ├── BadInput      a file, an option or a body is wrong; carries one `Fault` per mistake
    ├── NotFound      a named thing does not exist
    ├── Refused       the request is understood and not allowed
    ├── NoServer      no Levada server answers
    └── Unavailable   the server is there and cannot do it now; nothing of it was done, and the same may work later
        └── Unresolved    it is not known yet whether it was done; asked again with the same key, the server tells

The core raises only for a programmer's mistake; a job that must wait gets a reason, never an exception.
Where a name is unknown, `did_you_mean` ends the sentence.
"""

from collections.abc import Callable, Iterable
from difflib import SequenceMatcher
from typing import NamedTuple

#: Faults of one input that are told; the others are counted.
MOST_FAULTS = 100
#: Characters of the path and of the text of a fault: both may quote the input.
_LONGEST_PATH = 300
_LONGEST_TEXT = 1000
#: A longer name is no slip of the pen, and comparing it takes time.
_LONGEST_TYPO = 64
#: Of more names than this none is looked for: whoever has so many does not type them.
_MOST_NAMES = 1000


class Fault(NamedTuple):
    """One mistake in an input: where it is and what is wrong with it."""

    path: str  #: `jobs[3].min`; empty when the input as a whole is meant
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}" if self.path else self.text


class LevadaError(Exception):
    """Root of the tree; its text is one line, meant for a person."""


class BadInput(LevadaError):
    """The input has these faults, in the order of the input: the first 100, and *more* that are only counted."""

    def __init__(self, faults: Iterable[Fault], more: int = 0) -> None:
        self.faults: list[Fault] = []
        self.more = more
        for fault in faults:
            if len(self.faults) < MOST_FAULTS:
                self.faults.append(Fault(_clipped(fault.path, _LONGEST_PATH), _clipped(fault.text, _LONGEST_TEXT)))
            else:
                self.more += 1
        super().__init__("\n".join(self.lines()))

    def lines(self) -> list[str]:
        """One line per fault that is told, and the number of the others."""
        return [*map(str, self.faults), *([f"and {self.more} more"] if self.more else [])]

    @classmethod
    def one(cls, text: str, path: str = "") -> "BadInput":
        """An error of a single fault."""
        return cls([Fault(path, text)])


class Faults:
    """Faults collected from several parts of an input. *most* of them are told, the others are counted."""

    def __init__(self, most: int = MOST_FAULTS) -> None:
        self.told: list[Fault] = []
        self.more = 0
        self._most = most

    @property
    def room(self) -> int:
        """How many more faults are told: to describe others would be in vain."""
        return max(0, self._most - len(self.told))

    def add(self, path: str, text: str) -> None:
        """Adds one fault."""
        if self.room:
            self.told.append(Fault(path, text))
        else:
            self.more += 1

    def take(self, error: BadInput, placed: Callable[[Fault], Fault] = lambda fault: fault) -> None:
        """Adds those of an error; *placed* gives each its path in the whole input."""
        for fault in error.faults:
            self.add(*placed(fault))
        self.more += error.more

    def check(self) -> None:
        """Raises BadInput where there are any."""
        if self.told or self.more:
            raise BadInput(self.told, self.more)


class NotFound(LevadaError):
    """A named thing does not exist."""


class Refused(LevadaError):
    """The request is understood and not allowed; *code* says why, for programs that know what to do then."""

    def __init__(self, text: str, code: str = "") -> None:
        super().__init__(text)
        self.code = code


#: Of a `Refused`: work would be lost that no checkpoint has, and whoever asks did not say that this is meant.
UNSAVED = "unsaved"


class NoServer(LevadaError):
    """No Levada server answers."""


class Unavailable(LevadaError):
    """The server is there and cannot do it now; nothing of it was done, and the same may work later."""


class Unresolved(Unavailable):
    """The store was lost while it took the request: whether it has it is known when the store is back."""


class InternalError(LevadaError):
    """The server failed on the request because of a bug; nothing of it was done, and asking again will not help."""


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Those of *known* that *name* may have been meant for, best first; a clear winner comes alone."""
    names = list(known)
    if len(name) > _LONGEST_TYPO or len(names) > _MOST_NAMES:
        return []
    matcher = SequenceMatcher(b=name.lower())
    score: dict[str, float] = {}
    for candidate in names:
        matcher.set_seq1(candidate.lower())
        # The quick ratio is never below the true one, which costs ten times as much.
        score[candidate] = matcher.ratio() if matcher.quick_ratio() >= 0.6 else 0.0
    best = max(score.values(), default=0.0)
    close = [candidate for candidate in score if score[candidate] >= max(0.6, best - 0.05)]
    return sorted(close, key=lambda candidate: -score[candidate])[:3]


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """The end of a sentence about an unknown *name*: `; did you mean this?`, or what to do *otherwise*."""
    close = nearest(name, known)
    if close:
        return f"; did you mean {' or '.join(close)}?"
    return f"; {otherwise}" if otherwise else ""


def _clipped(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
