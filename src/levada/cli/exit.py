"""The exit codes of `levada` and which error ends with which."""

from enum import IntEnum

from levada.errors import BadInput, LevadaError, NoServer, NotFound, Refused


class ExitCode(IntEnum):
    """What the shell sees. The codes from 100 are those of verbs that wait for a job."""

    OK = 0
    ERROR = 1
    USAGE = 2  #: wrong usage or a bad file
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
    (NotFound, ExitCode.NOT_FOUND),
    (Refused, ExitCode.REFUSED),
    (NoServer, ExitCode.NO_SERVER),
)


def code_of(error: LevadaError) -> ExitCode:
    """The exit code for *error*."""
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), ExitCode.ERROR)
