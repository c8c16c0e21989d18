"""The command `levada`: registers verbs, maps errors to a line and exit code."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated

import typer

from levada import __version__
from levada.cli import completion
from levada.cli.exit import ExitCode, code_of
from levada.cli.extras import missing_extra
from levada.cli.output import data, message, open_streams, printable
from levada.cli.panels import Panels
from levada.cli.usage import sentence
from levada.errors import BadInput, LevadaError, MissingExtra

#: Modules of `levada.cli` with a `register(app)`, in the order of `--help`, and the verbs that each registers. Only the
#: module of the verb in use is imported.
VERBS: dict[str, tuple[str, ...]] = {
    "up": ("up", "down", "serve"),
    "agent": ("agent",),
    "submit": ("submit", "create", "apply", "whatif"),
    "run": ("run", "attach", "exec"),
    "ls": ("ls", "ps", "queue", "get", "describe"),
    "logs": ("logs", "events"),
    "explain": ("explain", "decisions"),
    "wait": ("wait",),
    "modify": ("cancel", "delete", "suspend", "resume", "scale", "update"),
    "top": ("top",),
    "nodes": ("nodes", "sinfo", "cordon", "drain", "uncordon", "node", "reserve"),
    "queues": ("queues", "usage"),
    "profile": ("profile",),
    "policy": ("policy",),
    "snapshot": ("snapshot", "replay"),
    "allocate": ("allocate",),
    "sim": ("sim",),
    "bench": ("bench",),
    "precompile": ("precompile",),
    "tour": ("tour",),
    "demo": ("demo",),
    "users": ("user", "token"),
    "context": ("context", "login"),
    "metrics": ("metrics",),
    "doctor": ("doctor",),
    "kubernetes": ("kubernetes",),
    "schema": ("schema",),
    "completion": ("completion",),
    "version": ("version",),
}

#: Exit code of typer after Ctrl-C.
_TYPER_INTERRUPTED = 130


def build(verb: str = "") -> typer.Typer:
    """Return the app with the module of *verb*, or with all modules if no module has it."""
    app = typer.Typer(
        cls=Panels,
        help="An elastic, heterogeneity-aware scheduler for deep-learning training.",
        # Plain help: importing rich takes longer than the rest of the start-up.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        # `levada completion` replaces the options that typer would add.
        add_completion=False,
        # `usage` suggests names, of verbs and of options.
        suggest_commands=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(top)
    owners = [module for module, verbs in VERBS.items() if verb in verbs]
    for name in owners or VERBS:
        module = f"levada.cli.{name}"
        if find_spec(module) is not None:
            import_module(module).register(app)
    if owners:
        # Typer reads the options of every registered command, which takes time.
        app.registered_commands = [command for command in app.registered_commands if command.name == verb]
    return app


def top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """An elastic, heterogeneity-aware scheduler for deep-learning training."""
    if version:
        data(f"levada {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        data(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `levada` with *arguments* (default: those of the process) and return its exit code."""
    try:
        return _run(arguments)
    finally:
        if arguments is None:
            # Skip the garbage collection at process exit: it takes longer than most verbs.
            gc.freeze()


def _run(arguments: Sequence[str] | None) -> int:
    open_streams()
    if arguments is None and not sys.warnoptions:
        # Warnings with lines of source are for developers: `python -W default -m levada` shows them.
        warnings.simplefilter("ignore")
    if completion.COMPLETE_VARIABLE in os.environ:
        completion.prepare()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["help"]:
        # As with git and kubectl: `help policy` is `policy --help`.
        words = [*(word for word in words if word != "help"), "--help"]
    try:
        verb = "" if completion.COMPLETE_VARIABLE in os.environ else next(iter(words), "")
        code = build(verb)(args=words, prog_name="levada", standalone_mode=False)
    except typer.TyperException as error:
        message(f"levada: {one_line(sentence(error))}")
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return _interrupted()
    except BadInput as error:
        for line in error.lines():
            message(one_line(line))
        return code_of(error)
    except MissingExtra as error:
        message(one_line(str(error)))
        return code_of(error)
    except LevadaError as error:
        message(f"levada: {one_line(str(error))}")
        return code_of(error)
    except BaseException as error:
        if isinstance(error, SystemExit) and completion.COMPLETE_VARIABLE in os.environ:
            # Typer exits like this after it has answered a completion script.
            return error.code if isinstance(error.code, int) else ExitCode.OK
        if isinstance(error, ModuleNotFoundError) and (missing := missing_extra(words, error)) is not None:
            message(one_line(str(missing)))
            return code_of(missing)
        # A bug in Levada, or an exception in a user's policy.
        if os.environ.get("LEVADA_DEBUG"):
            raise
        message(f"levada: {one_line(_fault(error))}")
        return ExitCode.ERROR
    if code == _TYPER_INTERRUPTED:
        return _interrupted()
    # Verbs exit with `raise typer.Exit(code)`; other return values are not exit codes.
    return code if isinstance(code, int) else ExitCode.OK


def _interrupted() -> int:
    message("levada: interrupted")
    return ExitCode.INTERRUPTED


def _fault(error: BaseException) -> str:
    from traceback import extract_tb

    frame = extract_tb(error.__traceback__)[-1]
    cause = f"{type(error).__name__}: {error}".removesuffix(": ")
    return f"internal error ({frame.filename}, line {frame.lineno}): {cause}; set LEVADA_DEBUG=1 for a traceback"


def one_line(text: str) -> str:
    """Return *text* on one line without control characters; it may quote files and arguments."""
    return printable(" ".join(text.split()))


if __name__ == "__main__":
    sys.exit(main())
