"""A shell script as a job: `#LEVADA` and `#SBATCH` lines are its fields.


    #!/bin/bash
    #LEVADA workers=1-8 gpuTypes=a100,v100 steps=200000
    #LEVADA queue=vision label.team=vision
    python train.py


`#LEVADA` lines contain `field=value` pairs with the names of a job file; they override `#SBATCH` lines. Both kinds must
come before the first command.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from levada.errors import BadInput, Fault, did_you_mean
from levada.jobfile.model import API_VERSION
from levada.jobfile.sbatch import read_directives

#: Fields by the name in a `#LEVADA` line, and where they stand in the spec of a job.
_FIELDS = {
    name: (name,)
    for name in (
        "workers", "gpusPerWorker", "gpuMemory", "gpuTypes", "queue", "priority", "weight", "steps", "epochs",
        "deadline", "timeLimit", "retries", "ttl", "after", "array", "preemptible", "notify",
    )
} | {
    "cpu": ("resources", "cpu"),
    "memory": ("resources", "memory"),
    "gracePeriod": ("checkpoint", "gracePeriod"),
    "workdir": ("run", "workdir"),
    "framework": ("run", "framework"),
}  # fmt: skip
_LISTS = ("gpuTypes", "after", "notify")
_NUMBERS = ("gpusPerWorker", "priority", "weight", "steps", "epochs", "retries")
#: Below the kernel's limit of 128 KiB per argument.
_LONGEST_ARGUMENT = 100_000
_SHELLS = ("sh", "bash", "dash", "ksh", "zsh")
#: Slurm's variables from those of Levada.
_SLURM_NAMES = (
    "export SLURM_JOB_ID=$LEVADA_JOB SLURM_PROCID=$LEVADA_RANK SLURM_NTASKS=$LEVADA_WORLD_SIZE "
    "SLURM_ARRAY_TASK_ID=$LEVADA_ARRAY_INDEX"
)


class Script(NamedTuple):
    """A job document from a script, and warnings about ignored lines."""

    document: dict[str, Any]
    warnings: list[str]


def from_script(
    text: str, path: str, *, arguments: Sequence[str] = (), folder: str = ".", environment: Mapping[str, str]
) -> Script:
    """The job document of the script *text* at *path*; raises BadInput.

    *environment* is the user's: `--export=NAME` reads it. *folder* is the submission folder, in which the script runs
    by default. `--chdir` is relative to it, as in Slurm; `workdir` in a `#LEVADA` line is relative to the script, as it
    is to the file in a job file.
    """
    lines = text.splitlines()
    if not text.startswith("#!") or not lines[0][2:].split():
        raise BadInput.one("not a script: the first line must name a shell, e.g. #!/bin/bash", path)
    head = _head(lines)
    directives = read_directives(head, environment)
    spec = directives.spec
    name = directives.name or re.sub(r"\.[^.]*$", "", path.rsplit("/", 1)[-1])
    run = spec.setdefault("run", {})
    run["workdir"] = posixpath.normpath(posixpath.join(folder, run.get("workdir", ".")))
    submitted_from = run["workdir"]
    faults: list[Fault] = []
    for number, line in head:
        if re.match(r"#LEVADA\s", line):
            name = _read_line(f"line {number}", line.removeprefix("#LEVADA"), spec, faults) or name
    if faults:
        raise BadInput(faults)
    if run["workdir"] != submitted_from:
        run["workdir"] = posixpath.normpath(posixpath.join(posixpath.dirname(path) or folder, run["workdir"]))
    run["command"] = _command(lines, path, arguments)
    warnings = list(directives.warnings)
    for number, line in enumerate(lines, start=1):
        several = str(spec.get("workers", 1)) != "1"
        if re.match(r"\s*(srun|mpirun|mpiexec)\b", line) or (several and re.match(r"\s*torchrun\b", line)):
            word = line.split()[0]
            warnings.append(f"line {number}: {word}: each worker runs the whole script; leave {word} out")
    document = {"apiVersion": API_VERSION, "kind": "Job", "metadata": {"name": as_name(name)}, "spec": spec}
    return Script(document, warnings)


def as_name(text: str) -> str:
    """The most similar valid job name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:42].rstrip("-") or "job"


def _head(lines: Sequence[str]) -> list[tuple[int, str]]:
    """The comments before the first command, with their line numbers."""
    head = []
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.startswith("#"):
            break
        head.append((number, line))
    return head


def _read_line(where: str, text: str, spec: dict[str, Any], faults: list[Fault]) -> str | None:
    """Add the pairs of one `#LEVADA` line to *spec*; the job's name, if given."""
    try:
        pairs = shlex.split(text, comments=True)
    except ValueError as error:
        faults.append(Fault(where, f"cannot be read: {str(error).lower()}"))
        return None
    job_name = None
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator:
            faults.append(Fault(where, f"{pair}: must be field=value, e.g. workers=1-8"))
        elif name == "name":
            job_name = value
        elif name.startswith(("label.", "env.")):
            group, _, key = name.partition(".")
            holder = spec.setdefault("labels", {}) if group == "label" else spec["run"].setdefault("env", {})
            holder[key] = value
        elif name in _FIELDS:
            *parents, last = _FIELDS[name]
            below = spec
            for parent in parents:
                below = below.setdefault(parent, {})
            try:
                below[last] = _value(name, value)
            except ValueError as error:
                faults.append(Fault(where, f"{name}: {error}"))
            if name in ("steps", "epochs"):
                spec.pop("epochs" if name == "steps" else "steps", None)
        else:
            known = (*_FIELDS, "name", "label.NAME", "env.NAME")
            faults.append(Fault(where, f"{name}: unknown field{did_you_mean(name, known)}"))
    return job_name


def _value(name: str, text: str) -> Any:
    if name == "workers":
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", text)
        if match is None:
            raise ValueError("must be a number or a range of workers, e.g. 4 or 1-8")
        return {"min": int(match[1]), "max": int(match[2])} if match[2] else int(match[1])
    if name in _LISTS:
        return [part for part in text.split(",") if part]
    if name in _NUMBERS:
        try:
            return float(text) if re.search(r"[.eE]", text) else int(text)
        except ValueError:
            return text
    if name == "preemptible":
        return {"true": True, "false": False}.get(text, text)
    return text


def _command(lines: Sequence[str], path: str, arguments: Sequence[str]) -> list[str]:
    """The command that runs the script text, independent of later file changes.

    Long scripts, and scripts for other interpreters, run from their file.
    """
    shebang = lines[0][2:].split()
    program = (shebang[1] if shebang[0].endswith("/env") and len(shebang) > 1 else shebang[0]).rsplit("/", 1)[-1]
    # Replaces the first line, so that line numbers in shell messages are right.
    whole = "\n".join([_SLURM_NAMES, *lines[1:]]) + "\n"
    if program not in _SHELLS or len(whole.encode()) > _LONGEST_ARGUMENT:
        return [*shebang, path, *arguments]
    return [*shebang, "-c", whole, path, *arguments]
