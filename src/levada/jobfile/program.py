"""Arguments and environment of a program, within the limits of the kernel."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from levada.jobfile.faults import fault

#: The longest argument, or NAME=value, that Linux accepts (with its terminator).
_LONGEST = 128 * 1024 - 1
#: The limit of all arguments, and of all variables: with those of Levada they must fit the kernel's 2 MiB.
_MOST = 768 * 1024


def _size(text: str, what: str) -> int:
    """The size in bytes; raises a fault if the kernel would reject the text."""
    if "\0" in text:
        raise fault(f"{what} contains a null byte")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise fault(f"{what} contains an unpaired UTF-16 surrogate") from None
    if size > _LONGEST:
        raise fault(f"{what} has {size:,} bytes; the kernel accepts at most {_LONGEST:,}: use a file")
    return size


def _argument(value: str) -> str:
    _size(value, "an argument")
    return value


def _is_list(value: Any) -> Any:
    if not isinstance(value, list):
        raise fault("must be a list, e.g. [python, train.py]")
    return value


def _command(values: list[str]) -> list[str]:
    if values and not values[0]:
        raise fault("the program name is empty")
    size = sum(len(value.encode()) + 1 for value in values)
    if size > _MOST:
        raise fault(f"all arguments have {size:,} bytes; at most {_MOST:,} fit: use a file")
    return values


def _environment(values: dict[str, str]) -> dict[str, str]:
    size = 0
    for name, value in values.items():
        if "=" in name:
            raise fault(f"{name!r} is not a variable name: it contains '='")
        size += _size(f"{name}={value}", f"the variable {name!r}") + 1
    if size > _MOST:
        raise fault(f"all variables have {size:,} bytes; at most {_MOST:,} fit: use a file")
    return values


#: Program and arguments.
Command = Annotated[
    list[Annotated[str, AfterValidator(_argument)]],
    BeforeValidator(_is_list, json_schema_input_type=list[str]),
    AfterValidator(_command),
]
#: Variables by name.
Environment = Annotated[dict[Annotated[str, Field(min_length=1, max_length=253)], str], AfterValidator(_environment)]
