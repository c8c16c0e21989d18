"""What goes to a server: documents with folders and programs that mean the same there as to who sends them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

#: Where the folder of a job of another kind is written down: its own `workingDir` is a folder of its image.
WORKDIR_ANNOTATION = "levada.dev/workdir"
#: And where its user finds programs: variables as JSON.
PATHS_ANNOTATION = "levada.dev/paths"
#: What tells programs apart: `python` in a job means the one that it means to who submits it.
PATHS = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "PYTHONPATH")
_KUBEFLOW = ("MPIJob", "PyTorchJob", "TFJob")


def sendable(document: Mapping[str, Any]) -> dict[str, Any]:
    """*document* for a server, which stands in another folder: relative folders are below the one of this process,
    and it says where its user finds programs, unless it does so itself."""
    try:
        here = os.getcwd()
    except OSError:
        here = "/"  # the folder of this process was removed
    return _with_paths(with_folder(document, here))


def folder_of(document: Mapping[str, Any]) -> str | None:
    """The folder that *document* itself names for its processes."""
    holder, key = _holder(document)
    return None if holder is None else holder.get(key)


def with_folder(document: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """*document* with the folder that its processes start in made absolute: relative ones are below *folder*, and
    where none is named it is *folder* itself."""
    source = dict(document)
    holder, key = _holder(source)
    if holder is None:
        return source
    named = folder_of(source)
    whole = os.path.normpath(os.path.join(folder, "." if named is None else named))
    if key == "workdir":
        return {**source, "spec": {**source["spec"], "run": {**holder, key: whole}}}
    return {**source, "metadata": {**source["metadata"], "annotations": {**holder, key: whole}}}


def _holder(document: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, str]:
    """The mapping of a document that names its folder, and by which key; None where there is no such place, or
    something in it that is no folder: who checks the document says so."""
    spec, metadata, kind = document.get("spec"), document.get("metadata"), document.get("kind")
    holder, key = None, "workdir"
    if kind == "Job" and isinstance(spec, Mapping):
        holder = spec.get("run")
    elif kind in _KUBEFLOW and isinstance(metadata, Mapping):
        holder, key = metadata.get("annotations") or {}, WORKDIR_ANNOTATION
    if not isinstance(holder, Mapping) or not isinstance(holder.get(key, ""), str):
        return None, key
    return holder, key


def _with_paths(document: dict[str, Any]) -> dict[str, Any]:
    if document.get("kind") in _KUBEFLOW:
        return _with_paths_noted(document)
    spec = document.get("spec")
    run = spec.get("run") if isinstance(spec, Mapping) else None
    if document.get("kind") != "Job" or spec is None or "kubernetes" in spec or not isinstance(run, Mapping):
        return document
    env = run.get("env", {})
    if not isinstance(env, Mapping):
        return document
    return {**document, "spec": {**spec, "run": {**run, "env": {**_paths(), **env}}}}


def _with_paths_noted(document: dict[str, Any]) -> dict[str, Any]:
    metadata = document.get("metadata")
    notes = (metadata.get("annotations") or {}) if isinstance(metadata, Mapping) else None
    if metadata is None or not isinstance(notes, Mapping):
        return document
    notes = {PATHS_ANNOTATION: json.dumps(_paths()), **notes}
    return {**document, "metadata": {**metadata, "annotations": notes}}


def _paths() -> dict[str, str]:
    return {name: os.environ[name] for name in PATHS if name in os.environ}
