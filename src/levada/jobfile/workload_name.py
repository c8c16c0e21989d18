"""The workload of a command line: `python -u train.py --lr 1` is `train`.

Learned speeds are stored by this name, so two scripts must not share the name of an interpreter.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence

_SHELLS = ("sh", "bash", "dash", "ksh", "zsh")
_INTERPRETERS = ("Rscript", "julia", "node", "perl", "ruby")
#: Programs that start a script once per process; their options are not parsed.
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "horovodrun", "mpirun", "mpiexec", "srun")
_LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
#: Programs that run another one.
_WRAPPERS = (
    "env", "nice", "ionice", "nohup", "time", "timeout", "stdbuf", "numactl", "taskset", "setsid", "exec", "uv",
    "poetry", "pipenv", "conda",
)  # fmt: skip
#: Shell commands that only prepare for the real one.
_PREPARATIONS = ("cd", "export", "set", "source", ".", "ulimit", "umask", "trap", "mkdir", "module", "true", ":")
_SUFFIX = re.compile(r"\.(py|pyc|sh|bash|zsh|R|r|jl|js|pl|rb)$")
#: Options of python that have a value of their own.
_PYTHON_VALUES = ("-W", "-X", "--check-hash-based-pycs")


def workload_of(command: Sequence[str]) -> str:
    """The name of the script, module or program that *command* runs."""
    return _named(list(command)) or _stem(command[0])


def _named(words: list[str], depth: int = 0) -> str:
    """Like `workload_of`; empty if the command names only its program."""
    words = words[next((place for place, word in enumerate(words) if not _is_assignment(word)), len(words)) :]
    if not words or depth > 8:
        return ""
    program, rest = words[0].rsplit("/", 1)[-1], words[1:]
    if _is_python(program):
        return _of_python(rest, depth)
    if program in _SHELLS:
        return _of_shell(rest, depth)
    if program in _INTERPRETERS:
        return next((_stem(word) for word in rest if not word.startswith("-")), "")
    if program in _LAUNCHERS:
        return _behind_options(rest, depth, _is_script)
    if program in _WRAPPERS:
        return _behind_options(rest, depth, _is_program) or _first_word(rest)
    return _stem(words[0])


def _of_python(words: list[str], depth: int) -> str:
    while words and words[0].startswith("-"):
        if words[0] == "-m" and len(words) > 1:
            if words[1] in _LAUNCHER_MODULES:
                return _behind_options(words[2:], depth, _is_script)
            return words[1].removesuffix(".__main__").rsplit(".", 1)[-1]
        if words[0] in ("-c", "-m", "-"):
            return ""
        words = words[2 if words[0] in _PYTHON_VALUES else 1 :]
    return _stem(words[0]) if words else ""


def _of_shell(words: list[str], depth: int) -> str:
    """The workload of a script, or of the first real command of a `-c` line."""
    for place, word in enumerate(words):
        if not word.startswith("-"):
            return _stem(word)
        if not word.startswith("--") and word.endswith("c"):
            return _of_line(words[place + 1], depth) if place + 1 < len(words) else ""
    return ""


def _of_line(line: str, depth: int) -> str:
    reader = shlex.shlex(line, posix=True, punctuation_chars=";&|\n")
    reader.whitespace, reader.whitespace_split, reader.commenters = " \t\r", True, "#"
    commands: list[list[str]] = [[]]
    try:
        for word in reader:
            if word.strip(";&|\n"):
                commands[-1].append(word)
            else:
                commands.append([])
    except ValueError:
        return ""
    real = [words for words in commands if words and words[0] not in _PREPARATIONS]
    return _named(real[0], depth + 1) if real else ""


def _behind_options(words: list[str], depth: int, counts: Callable[[str], bool]) -> str:
    """The workload of the first word that *counts*, after any options."""
    for place, word in enumerate(words):
        if word == "-m" and place + 1 < len(words) and "." in words[place + 1]:
            return words[place + 1].removesuffix(".__main__").rsplit(".", 1)[-1]
        if counts(word):
            return _named(words[place:], depth + 1)
    return ""


def _first_word(words: list[str]) -> str:
    return next((_stem(word) for word in words if not word.startswith("-") and not _is_assignment(word)), "")


def _is_script(word: str) -> bool:
    program = word.rsplit("/", 1)[-1]
    return bool(_SUFFIX.search(word)) or _is_python(program) or program in _SHELLS or word.startswith(("./", "../"))


def _is_program(word: str) -> bool:
    program = word.rsplit("/", 1)[-1]
    return _is_script(word) or program in (*_LAUNCHERS, *_WRAPPERS, *_INTERPRETERS)


def _is_python(program: str) -> bool:
    return re.fullmatch(r"(python|pypy)[0-9.]*", program) is not None


def _is_assignment(word: str) -> bool:
    return re.match(r"[A-Za-z_][A-Za-z0-9_]*=", word) is not None


def _stem(word: str) -> str:
    return _SUFFIX.sub("", word.rstrip("/").rsplit("/", 1)[-1])
