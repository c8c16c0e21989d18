"""The exit codes of `levada`, and the exit code of each error."""

from enum import IntEnum

from levada.errors import BadInput, LevadaError, MissingExtra, NoServer, NotFound, Refused


class ExitCode(IntEnum):
    """Exit codes. Codes from 100 belong to verbs that wait for a job."""

    OK = 0
    ERROR = 1
    USAGE = 2  #: wrong usage, a bad file, or a missing extra
    INTERRUPTED = 3
    NOT_FOUND = 4
    REFUSED = 5
    NO_SERVER = 6
    JOB_FAILED = 100
    JOB_TIMED_OUT = 101
    JOB_NOT_FOUND = 102
    JOB_CANCELLED = 103


_BY_ERROR: tuple[tuple[type[LevadaError], ExitCode], ...] = (
    (BadInput, ExitCode.USAGE),
    (MissingExtra, ExitCode.USAGE),
    (NotFound, ExitCode.NOT_FOUND),
    (Refused, ExitCode.REFUSED),
    (NoServer, ExitCode.NO_SERVER),
)


def code_of(error: LevadaError) -> ExitCode:
    """Return the exit code of *error*."""
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), ExitCode.ERROR)
