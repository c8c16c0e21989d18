"""Parse commands that call torchrun: program, options, and script.

Levada starts torchrun itself, once per node, so the torchrun of a command is merged with it. A torchrun inside another,
or one in each worker, would train several times into the same checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_MODULES = ("torch.distributed.run", "torch.distributed.launch")
#: Options of torchrun without a value; all others have one.
_FLAGS = (
    "standalone", "module", "m", "no-python", "run-path", "use-agent-store", "use-env", "virtual-local-rank",
)  # fmt: skip
#: Options for the processes and their rendezvous, which Levada sets.
_OURS = (
    "nnodes", "nproc-per-node", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "standalone", "max-restarts",
    "node-rank", "master-addr", "master-port",
)  # fmt: skip
#: Options of Python with a value of their own.
_PYTHON_VALUES = ("-X", "-W")


class Launcher(NamedTuple):
    """The command line of torchrun."""

    #: `torchrun`, or `python -m torch.distributed.run`.
    program: tuple[str, ...]
    #: The words of each option, by its name with dashes.
    options: dict[str, tuple[str, ...]]
    #: The script or program, with its arguments.
    script: tuple[str, ...]

    def value(self, option: str) -> str | None:
        """The value of an option; None if absent."""
        words = self.options.get(option)
        if words is None:
            return None
        return words[1] if len(words) > 1 else words[0].partition("=")[2]

    def merged(self, ours: Sequence[str]) -> list[str]:
        """The command with *ours* instead of its own process and rendezvous options."""
        own = [word for name, words in self.options.items() if name not in _OURS for word in words]
        return [*self.program, *own, *ours, *self.script]


def read(command: Sequence[str]) -> Launcher | None:
    """The torchrun command line; None for other commands or without a script."""
    program = _program(command)
    rest = list(command[len(program) :])
    options: dict[str, tuple[str, ...]] = {}
    while rest and rest[0].startswith("-"):
        name, separator, _ = rest[0].lstrip("-").partition("=")
        name = name.replace("_", "-")
        length = 1 if separator or name in _FLAGS else 2
        options[name] = tuple(rest[:length])
        rest = rest[length:]
    return Launcher(program, options, tuple(rest)) if program and rest else None


def _program(command: Sequence[str]) -> tuple[str, ...]:
    """The words that call torchrun; empty if the command calls something else."""
    name = command[0].rsplit("/", 1)[-1] if command else ""
    if name == "torchrun":
        return tuple(command[:1])
    at = 1
    while name.startswith("python") and at < len(command) and command[at].startswith("-"):
        if command[at] == "-m":
            return tuple(command[: at + 2]) if command[at + 1 : at + 2] and command[at + 1] in _MODULES else ()
        at += 2 if command[at] in _PYTHON_VALUES else 1
    return ()


def is_merged(command: Sequence[str], framework: str | None, most: int) -> bool:
    """Whether the command's torchrun is merged; a single worker may run its own."""
    return framework in (None, "torchrun") and (most > 1 or framework == "torchrun") and read(command) is not None


def framework_of(command: Sequence[str], said: str | None, servers: bool, most: int) -> str:
    """The framework of a job: explicit, or from parameter servers and the command."""
    if not servers and is_merged(command, said, most):
        return "torchrun"
    return said or ("tensorflow" if servers else "plain")


def fault_of(command: Sequence[str], framework: str | None, least: int, most: int, gpus: float) -> str:
    """Why a job of *least* to *most* workers cannot run *command*; empty if it can."""
    launcher = read(command)
    if launcher is None:
        return ""
    if framework == "plain" and most > 1:
        return f"each of {most} workers would run a torchrun of its own: use framework: torchrun, or leave it out"
    if not is_merged(command, framework, most):
        return ""
    processes, nodes = _processes(launcher, gpus), _nodes(launcher)
    if processes == 1 or least <= processes * nodes <= most:
        return ""
    have = f"{least} to {most} workers" if least < most else f"{most} worker{'s' if most > 1 else ''}"
    alone = "" if most > 1 else "; or leave framework out, and the one worker runs torchrun itself"
    return (
        f"torchrun requests {processes * nodes} processes, but the job has {have} of one process each: "
        f"use workers: {processes * nodes} with gpusPerWorker: 1{alone}"
    )


def _processes(launcher: Launcher, gpus: float) -> int:
    """The requested processes per node; 1 if not specified."""
    word = launcher.value("nproc-per-node")
    if word in ("auto", "gpu"):
        return max(1, int(gpus))
    return max(1, int(word)) if word is not None and word.isdecimal() and len(word) < 10 else 1


def _nodes(launcher: Launcher) -> int:
    """The most nodes requested."""
    word = (launcher.value("nnodes") or "1").rpartition(":")[2]
    return max(1, int(word)) if word.isdecimal() and len(word) < 10 else 1
