"""Usage errors in one sentence, with a suggestion."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import typer

from levada.errors import did_you_mean

_NO_CHOICE = re.compile(r"'(.*)' is not one of", re.DOTALL)
_NO_COMMAND = re.compile(r"No such command '(.*)'", re.DOTALL)


def sentence(error: typer.TyperException) -> str:
    """Return typer's usage error with the closest command, option or choice, or the list of commands."""
    text = error.format_message().rstrip(".")
    # Typer's error classes have no common fields, and some have none.
    context: Any = getattr(error, "ctx", None)
    if context is None:
        return text
    see = f"see {context.command_path} --help"
    if text == "Missing command":
        return f"{context.command_path} needs a command: {', '.join(_verbs(context))}; {see}"
    if unknown := _NO_COMMAND.match(text):
        return f"{context.command_path} has no command {unknown[1]!r}" + did_you_mean(unknown[1], _verbs(context), see)
    if text.startswith("Missing") and (param := getattr(error, "param", None)) is not None:
        return f"{context.command_path} needs {_named(param)}: {param.help.rstrip('.')}"
    if option := getattr(error, "option_name", None):
        known = [name for param in context.command.get_params(context) for name in param.opts]
        return f"no such option {option}" + did_you_mean(option, known, see) if "No such option" in text else text
    choices = getattr(getattr(getattr(error, "param", None), "type", None), "choices", ())
    if choices and (unknown := _NO_CHOICE.match(error.message)):
        return text + did_you_mean(unknown[1], [str(choice) for choice in choices])
    return text.replace("a valid int range", "a whole number").replace("a valid int", "a whole number")


def _verbs(context: Any) -> Iterable[str]:
    names: list[str] = context.command.list_commands(context)
    return names


def _named(param: Any) -> str:
    """Return the flags of an option; the choices or the name of an argument."""
    if param.param_type_name == "option":
        return " or ".join(param.opts)
    choices = getattr(param.type, "choices", ())
    return "one of " + ", ".join(map(str, choices)) if choices else str(param.metavar or param.name).upper()
