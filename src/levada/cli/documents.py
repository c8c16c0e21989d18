"""Job files and scripts as checked documents, ready to be sent."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from levada.cli.allocate import read
from levada.cli.output import chatter
from levada.errors import BadInput, Fault

Files = Annotated[
    list[str] | None,
    typer.Option("--filename", "-f", metavar="FILE", help="A job file: YAML or JSON, - for standard input."),
]


def read_files(files: Sequence[str]) -> list[Any]:
    """The documents (`jobfile.document.Document`) of all files, in their order; raises BadInput with all faults."""
    from levada.jobfile.load import load

    found: list[Any] = []
    faults: list[Fault] = []
    for path in files:
        try:
            found += load(read(path))
        except BadInput as error:
            # What is said of no field, or among several files, is said of the file.
            faults += [
                fault if fault.path and len(files) == 1 else Fault(f"{path}: {fault.path}".rstrip(": "), fault.text)
                for fault in error.faults
            ]
    if faults:
        raise BadInput(faults)
    return found


def read_script(words: Sequence[str]) -> list[Any]:
    """The document of a script with its arguments; what is not understood is said on stderr. Raises BadInput."""
    from levada.jobfile.load import check
    from levada.jobfile.script import from_script

    path = os.path.abspath(words[0]) if words[0] != "-" else "-"
    script = from_script(read(words[0]), path, arguments=words[1:], folder=os.getcwd(), environment=dict(os.environ))
    for warning in script.warnings:
        chatter(f"levada: {words[0]}: {warning}")
    return [check(script.document)]


#: What tells programs apart: `python` in a job means the one that it means to who submits it.
_PATHS = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "PYTHONPATH")


def sent(documents: Sequence[Any]) -> list[dict[str, Any]]:
    """What goes to the server: documents as they were written, with folders and programs that mean the same there."""
    from levada.jobfile.document import with_folder

    folder = os.getcwd()
    return [_with_paths(with_folder(document.source, folder)) for document in documents]


def _with_paths(document: dict[str, Any]) -> dict[str, Any]:
    """A job of ours that runs processes, with where its user finds programs unless it says so itself."""
    spec = document.get("spec")
    if document.get("kind") != "Job" or not isinstance(spec, dict) or "kubernetes" in spec or "run" not in spec:
        return document
    paths = {name: os.environ[name] for name in _PATHS if name in os.environ}
    run = {**spec["run"], "env": {**paths, **spec["run"].get("env", {})}}
    return {**document, "spec": {**spec, "run": run}}
