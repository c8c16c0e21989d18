"""Read job files and scripts as checked documents."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import typer

from levada.cli.allocate import read
from levada.cli.output import message
from levada.errors import BadInput, Fault, Faults

Files = Annotated[
    list[str] | None,
    typer.Option(
        "--filename", "-f", metavar="FILE", help="Job file: YAML or JSON; - = standard input; may be repeated."
    ),
]

#: First characters of a script; a job file never starts with them.
_SCRIPT = "#!"


def read_files(files: Sequence[str]) -> list[Any]:
    """Return the documents (`jobfile.document.Document`) of all files; raises BadInput with all faults."""
    from levada.jobfile.load import load

    documents: list[Any] = []
    faults = Faults()
    file_of: dict[tuple[bool, str], str] = {}
    for path in files:
        try:
            content = read(path, regular=True)
            if content.startswith(_SCRIPT):
                raise BadInput.one(f"is a script, not a job file; submit it with `levada submit {path}`")
            loaded = load(content)
        except BadInput as error:
            faults.take(error, partial(_of_file, path=path, several=len(files) > 1))
            continue
        for document in loaded:
            other = file_of.get((document.is_job, document.name))
            if other is not None:
                faults.add(f"{path}: metadata.name", f"{document.name} is also in {other}; rename one of them")
        file_of |= {(document.is_job, document.name): path for document in loaded}
        documents += [_with_absolute_folder(document, path) for document in loaded]
    faults.check()
    return documents


def _of_file(fault: Fault, path: str, several: bool) -> Fault:
    """Prefix a fault with its file, if it has no field or there are several files."""
    if (fault.path and not several) or fault.text.startswith(f"{path}: "):
        return fault
    return Fault(f"{path}: {fault.path}".rstrip(": "), fault.text)


def _with_absolute_folder(document: Any, path: str) -> Any:
    """Make the folder of a document absolute; it is relative to the folder of the file."""
    from dataclasses import replace

    from levada.sdk.prepare import folder_of, with_folder

    if path == "-" or folder_of(document.source) is None:
        return document
    return replace(document, source=with_folder(document.source, os.path.dirname(os.path.abspath(path))))


def read_script(words: Sequence[str]) -> list[Any]:
    """Return the document of a script with its arguments; prints warnings, raises BadInput."""
    from levada.jobfile.load import check
    from levada.jobfile.script import from_script

    path = os.path.abspath(words[0]) if words[0] != "-" else "-"
    script = from_script(
        read(words[0], regular=True), path, arguments=words[1:], folder=os.getcwd(), environment=dict(os.environ)
    )
    for warning in script.warnings:
        message(f"levada: {words[0]}: {warning}")
    return [check(script.document)]


def with_options(documents: list[Any], array: str | None, after: Sequence[str]) -> list[Any]:
    """Return *documents* with the flags `--array` and `--after` applied; raises BadInput."""
    if array is None and not after:
        return documents
    from levada.jobfile.load import check

    changed = []
    for document in documents:
        if document.kind != "Job":
            option = "--array" if array is not None else "--after"
            raise BadInput.one(f"{document.kind} {document.name}: works only for jobs of kind Job", option)
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
