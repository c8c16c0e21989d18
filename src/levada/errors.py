"""The exceptions of Levada.

    LevadaError
    ├── BadInput      a file, an option or a body is invalid; has one `Fault` per error
    ├── NotFound      an object does not exist
    ├── Refused       the request is valid, but not permitted
    ├── NoServer      no Levada server responds
    ├── MissingExtra  an optional dependency is not installed
    ├── InternalError the server failed because of a bug
    └── Unavailable   the server cannot process the request now; it had no effect and can be retried
        └── Unresolved    the outcome is not known yet; a retry with the same key returns it

The core raises only for programming errors; a job that must wait gets a reason, never an exception. Messages about
unknown names end with `did_you_mean`.
"""

from collections.abc import Callable, Iterable
from difflib import SequenceMatcher
from typing import NamedTuple

#: Maximum number of faults that are listed; further ones are counted.
MOST_FAULTS = 100
#: Maximum length of the path and of the text of a fault: both may quote the input.
_LONGEST_PATH = 300
_LONGEST_TEXT = 1000
#: Longer names are not typos, and comparing them takes time.
_LONGEST_TYPO = 64
#: With more known names than this, there are no suggestions.
_MOST_NAMES = 1000


class Fault(NamedTuple):
    """One error in an input: its path, and what is wrong."""

    path: str  #: `jobs[3].min`; empty = the whole input
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}" if self.path else self.text


class LevadaError(Exception):
    """Base class; the text is one human-readable line."""


class BadInput(LevadaError):
    """The input is invalid: the first 100 faults in input order, and the number of *more* faults."""

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
        """One line per listed fault, and the number of the others."""
        return [*map(str, self.faults), *([f"and {self.more} more"] if self.more else [])]

    @classmethod
    def one(cls, text: str, path: str = "") -> "BadInput":
        """An error with a single fault."""
        return cls([Fault(path, text)])


class Faults:
    """Faults collected from several parts of an input: at most *most* are listed, the others counted."""

    def __init__(self, most: int = MOST_FAULTS) -> None:
        self.listed: list[Fault] = []
        self.more = 0
        self._most = most

    @property
    def room(self) -> int:
        """How many more faults can be listed."""
        return max(0, self._most - len(self.listed))

    def add(self, path: str, text: str) -> None:
        """Add one fault."""
        if self.room:
            self.listed.append(Fault(path, text))
        else:
            self.more += 1

    def take(self, error: BadInput, placed: Callable[[Fault], Fault] = lambda fault: fault) -> None:
        """Add the faults of an error; *placed* converts each path to that in the whole input."""
        for fault in error.faults:
            self.add(*placed(fault))
        self.more += error.more

    def check(self) -> None:
        """Raise BadInput if there are any faults."""
        if self.listed or self.more:
            raise BadInput(self.listed, self.more)


class NotFound(LevadaError):
    """An object does not exist."""


class Refused(LevadaError):
    """The request is valid, but not permitted; *code* is a machine-readable cause."""

    def __init__(self, text: str, code: str = "") -> None:
        super().__init__(text)
        self.code = code


#: Code of a `Refused`: work since the last checkpoint would be lost, and the request does not confirm that.
UNSAVED = "unsaved"


class NoServer(LevadaError):
    """No Levada server responds."""


class MissingExtra(LevadaError):
    """*feature* needs an extra that is not installed; the text has the command to install it."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(feature, extra)

    def __str__(self) -> str:
        feature, extra = self.args
        return f"{feature} needs the extra '{extra}': pip install 'levada[{extra}]'"


class Unavailable(LevadaError):
    """The server cannot process the request now; it had no effect and can be retried."""


class Unresolved(Unavailable):
    """The store became unavailable during the request: the outcome is known when it is back."""


class InternalError(LevadaError):
    """The server failed because of a bug; the request had no effect, and a retry will not help."""


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The names in *known* that are most similar to *name*, best first; a clear winner is returned alone."""
    names = list(known)
    if len(name) > _LONGEST_TYPO or len(names) > _MOST_NAMES:
        return []
    matcher = SequenceMatcher(b=name.lower())
    score: dict[str, float] = {}
    for candidate in names:
        matcher.set_seq1(candidate.lower())
        # The quick ratio is an upper bound and 10 times faster.
        score[candidate] = matcher.ratio() if matcher.quick_ratio() >= 0.6 else 0.0
    top = max(score.values(), default=0.0)
    close = [candidate for candidate in score if score[candidate] >= max(0.6, top - 0.05)]
    return sorted(close, key=lambda candidate: -score[candidate])[:3]


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """The end of a message about an unknown *name*: `; did you mean this?`, or *otherwise*."""
    close = nearest(name, known)
    if close:
        return f"; did you mean {' or '.join(close)}?"
    return f"; {otherwise}" if otherwise else ""


def _clipped(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
