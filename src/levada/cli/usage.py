"""Wrong usage in one sentence: what is wrong with the command line, and what was probably meant."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import typer

from levada.errors import did_you_mean

_NO_CHOICE = re.compile(r"'(.*)' is not one of", re.DOTALL)
_NO_COMMAND = re.compile(r"No such command '(.*)'", re.DOTALL)


def sentence(error: typer.TyperException) -> str:
    """What typer says about the command line, with the nearest verb, option or choice, or the list of verbs."""
    said = error.format_message().rstrip(".")
    # typer gives its errors no common fields: each kind has its own, and some have none.
    context: Any = getattr(error, "ctx", None)
    if context is None:
        return said
    see = f"see {context.command_path} --help"
    if said == "Missing command":
        return f"{context.command_path} needs a verb: {', '.join(_verbs(context))}; {see}"
    if strange := _NO_COMMAND.match(said):
        return f"{context.command_path} has no verb {strange[1]!r}" + did_you_mean(strange[1], _verbs(context), see)
    if said.startswith("Missing") and (param := getattr(error, "param", None)) is not None:
        return f"{context.command_path} needs {_named(param)}: {param.help.rstrip('.')}"
    if option := getattr(error, "option_name", None):
        known = [name for param in context.command.get_params(context) for name in param.opts]
        return f"no such option {option}" + did_you_mean(option, known, see) if "No such option" in said else said
    choices = getattr(getattr(getattr(error, "param", None), "type", None), "choices", ())
    if choices and (strange := _NO_CHOICE.match(error.message)):
        return said + did_you_mean(strange[1], [str(choice) for choice in choices])
    return said.replace("a valid int range", "a whole number").replace("a valid int", "a whole number")


def _verbs(context: Any) -> Iterable[str]:
    names: list[str] = context.command.list_commands(context)
    return names


def _named(param: Any) -> str:
    """An option as it is written; an argument by what can be written for it."""
    if param.param_type_name == "option":
        return " or ".join(param.opts)
    choices = getattr(param.type, "choices", ())
    return "one of " + ", ".join(map(str, choices)) if choices else str(param.metavar or param.name).upper()
