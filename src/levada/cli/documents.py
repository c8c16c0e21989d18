"""Job files and scripts as checked documents."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import typer

from levada.cli.allocate import read
from levada.cli.output import chatter
from levada.errors import BadInput, Fault, Faults

Files = Annotated[
    list[str] | None,
    typer.Option("--filename", "-f", metavar="FILE", help="A job file: YAML or JSON, - for standard input."),
]

#: How a script begins, and no YAML with a job in it.
_SCRIPT = "#!"


def read_files(files: Sequence[str]) -> list[Any]:
    """The documents (`jobfile.document.Document`) of all files, in their order; raises BadInput with all faults."""
    from levada.jobfile.load import load

    found: list[Any] = []
    faults = Faults()
    file_of: dict[tuple[bool, str], str] = {}
    for path in files:
        try:
            content = read(path, regular=True)
            if content.startswith(_SCRIPT):
                raise BadInput.one(f"is a script, not a job file: submit it with `levada submit {path}`")
            here = load(content)
        except BadInput as error:
            faults.take(error, partial(_of_file, path=path, several=len(files) > 1))
            continue
        for document in here:
            other = file_of.get((document.is_job, document.name))
            if other is not None:
                faults.add(f"{path}: metadata.name", f"{document.name} is in {other}, too; name it otherwise")
        file_of |= {(document.is_job, document.name): path for document in here}
        found += [_in_its_folder(document, path) for document in here]
    faults.check()
    return found


def _of_file(fault: Fault, path: str, several: bool) -> Fault:
    """What is said of no field, or among several files, is said of the file; once."""
    if (fault.path and not several) or fault.text.startswith(f"{path}: "):
        return fault
    return Fault(f"{path}: {fault.path}".rstrip(": "), fault.text)


def _in_its_folder(document: Any, path: str) -> Any:
    """*document* with a relative folder that it names made absolute: it is below that of its file."""
    from dataclasses import replace

    from levada.sdk.sending import folder_of, with_folder

    if path == "-" or folder_of(document.source) is None:
        return document
    return replace(document, source=with_folder(document.source, os.path.dirname(os.path.abspath(path))))


def read_script(words: Sequence[str]) -> list[Any]:
    """The document of a script with its arguments; what is not understood is said on stderr. Raises BadInput."""
    from levada.jobfile.load import check
    from levada.jobfile.script import from_script

    path = os.path.abspath(words[0]) if words[0] != "-" else "-"
    script = from_script(
        read(words[0], regular=True), path, arguments=words[1:], folder=os.getcwd(), environment=dict(os.environ)
    )
    for warning in script.warnings:
        chatter(f"levada: {words[0]}: {warning}")
    return [check(script.document)]


def with_options(documents: list[Any], array: str | None, after: Sequence[str]) -> list[Any]:
    """*documents* with what the command line says of all of them; raises BadInput."""
    if array is None and not after:
        return documents
    from levada.jobfile.load import check

    changed = []
    for document in documents:
        if document.kind != "Job":
            option = "--array" if array is not None else "--after"
            raise BadInput.one(f"{document.kind} {document.name}: works for jobs of kind Job alone", option)
        spec = {**document.source["spec"]}
        if array is not None:
            spec["array"] = array
        if after:
            spec["after"] = [*spec.get("after", []), *after]
        try:
            changed.append(check({**document.source, "spec": spec}))
        except BadInput as error:
            faults = [Fault(fault.path.replace("spec.array", "--array"), fault.text) for fault in error.faults]
            raise BadInput(faults, error.more) from None
    return changed
