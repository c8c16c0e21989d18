"""What the kernel takes for a program: its arguments and its environment."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from levada.jobfile.faults import fault

#: Linux takes no longer argument, nor NAME=value, its end included.
_LONGEST = 128 * 1024 - 1
#: All arguments together, and all variables: with what Levada adds they must fit the kernel's 2 MiB.
_MOST = 768 * 1024


def _size(text: str, what: str) -> int:
    """Its bytes; raises where the kernel would not take it."""
    if "\0" in text:
        raise fault(f"{what} has a null byte, which no program can be given")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise fault(f"{what} has characters that are no text (half of a UTF-16 pair)") from None
    if size > _LONGEST:
        raise fault(f"{what} has {size:,} bytes, and the kernel takes at most {_LONGEST:,}: put it in a file")
    return size


def _argument(value: str) -> str:
    _size(value, "an argument")
    return value


def _command(values: list[str]) -> list[str]:
    if values and not values[0]:
        raise fault("the program has no name")
    size = sum(len(value.encode()) + 1 for value in values)
    if size > _MOST:
        raise fault(f"all arguments have {size:,} bytes, and at most {_MOST:,} fit: put some in a file")
    return values


def _environment(values: dict[str, str]) -> dict[str, str]:
    size = 0
    for name, value in values.items():
        if "=" in name:
            raise fault(f"{name!r} is no name of a variable: it has a '='")
        size += _size(f"{name}={value}", f"the variable {name!r}") + 1
    if size > _MOST:
        raise fault(f"all variables have {size:,} bytes, and at most {_MOST:,} fit: put some in a file")
    return values


#: Program and arguments.
Command = Annotated[list[Annotated[str, AfterValidator(_argument)]], AfterValidator(_command)]
#: Variables by name.
Environment = Annotated[dict[Annotated[str, Field(min_length=1, max_length=253)], str], AfterValidator(_environment)]
