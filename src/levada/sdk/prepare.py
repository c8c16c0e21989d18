"""Prepare documents for a server: absolute directories, and the PATH of the user."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

#: Annotation of a Kubeflow job for its directory; `workingDir` is a directory of its image.
WORKDIR_ANNOTATION = "levada.dev/workdir"
#: Annotation of a Kubeflow job for `PATHS`, as JSON.
PATHS_ANNOTATION = "levada.dev/paths"
#: Variables that select programs: `python` in a job is the one of the user who submits it.
PATHS = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "PYTHONPATH")
_KUBEFLOW = ("MPIJob", "PyTorchJob", "TFJob")


def sendable(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return *document* with directories relative to that of this process, and with its `PATHS` unless it sets them."""
    try:
        here = os.getcwd()
    except OSError:
        here = "/"  # the directory of this process was removed
    return _with_paths(with_folder(document, here))


def folder_of(document: Mapping[str, Any]) -> str | None:
    """Return the directory that *document* sets for its workers."""
    holder, key = _holder(document)
    return None if holder is None else holder.get(key)


def with_folder(document: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Return *document* with an absolute directory for its workers: relative to *folder*, by default *folder*."""
    source = dict(document)
    holder, key = _holder(source)
    if holder is None:
        return source
    relative = folder_of(source)
    absolute = os.path.normpath(os.path.join(folder, "." if relative is None else relative))
    if key == "workdir":
        return {**source, "spec": {**source["spec"], "run": {**holder, key: absolute}}}
    return {**source, "metadata": {**source["metadata"], "annotations": {**holder, key: absolute}}}


def _holder(document: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, str]:
    """Return the mapping that contains the directory, and its key; None if the document is not valid there.

    The server reports such faults.
    """
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
        return _with_paths_annotation(document)
    spec = document.get("spec")
    run = spec.get("run") if isinstance(spec, Mapping) else None
    if document.get("kind") != "Job" or spec is None or "kubernetes" in spec or not isinstance(run, Mapping):
        return document
    env = run.get("env", {})
    if not isinstance(env, Mapping):
        return document
    return {**document, "spec": {**spec, "run": {**run, "env": {**_paths(), **env}}}}


def _with_paths_annotation(document: dict[str, Any]) -> dict[str, Any]:
    metadata = document.get("metadata")
    annotations = (metadata.get("annotations") or {}) if isinstance(metadata, Mapping) else None
    if metadata is None or not isinstance(annotations, Mapping):
        return document
    annotations = {PATHS_ANNOTATION: json.dumps(_paths()), **annotations}
    return {**document, "metadata": {**metadata, "annotations": annotations}}


def _paths() -> dict[str, str]:
    return {name: os.environ[name] for name in PATHS if name in os.environ}
