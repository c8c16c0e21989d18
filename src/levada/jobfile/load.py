"""A job file as checked documents, or every fault in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from levada.errors import MOST_FAULTS, BadInput, Fault, Faults, did_you_mean
from levada.jobfile import mpijob, pytorchjob, serving, tfjob
from levada.jobfile.document import Document
from levada.jobfile.faults import bad_input
from levada.jobfile.limits import JOB_FILE, check_documents
from levada.jobfile.manifest import ManifestFaults, Place
from levada.jobfile.model import API_VERSION, KINDS
from levada.jobfile.text import parse_any

_KUBEFLOW = {"MPIJob": mpijob, "PyTorchJob": pytorchjob, "TFJob": tfjob}
#: Every kind of document that is understood.
ALL_KINDS = (*KINDS, *_KUBEFLOW, *serving.VERSIONS)


def load(text: str) -> list[Document]:
    """The documents of a YAML or JSON text, in its order; raises BadInput with all faults.

    A document may also be a list of them. Where there are several, the path of a fault begins with its number.
    """
    values: list[Any] = []
    for value in parse_any(text, JOB_FILE):
        values += value if isinstance(value, list) else [value]
    if not values:
        raise BadInput.one("the file holds no job")
    check_documents(len(values))

    loaded: list[Document] = []
    faults = Faults()
    first_of: dict[tuple[bool, str, str], int] = {}
    for number, value in enumerate(values, start=1):
        prefix = f"document {number}: " if len(values) > 1 else ""
        try:
            found = check(value, faults.room)
        except BadInput as error:
            faults.take(error, in_document(prefix))
            continue
        # All kinds of jobs share their names.
        key = (found.is_job, "" if found.is_job else found.kind, found.name)
        first = first_of.setdefault(key, number)
        if first != number:
            faults.add(f"{prefix}metadata.name", f"must differ from that of document {first}")
        loaded.append(found)
    faults.check()
    return loaded


def in_document(prefix: str) -> Callable[[Fault], Fault]:
    """Gives a fault of one document its place in a file of several; *prefix* is `document 3: `, or empty."""
    return lambda fault: Fault(prefix + fault.path if fault.path else prefix.rstrip(": "), fault.text)


def check(value: Any, describe: int = MOST_FAULTS) -> Document:
    """One document, given as plain values, of whatever kind; raises BadInput.

    Of its faults *describe* are put into words, and the others counted: to find the right name for a wrong one takes
    time.
    """
    if not isinstance(value, dict):
        raise BadInput.one("must be a mapping with apiVersion, kind, metadata and spec")
    kind = value.get("kind")
    if isinstance(kind, str) and kind in KINDS:
        return _own(kind, value, describe)
    if isinstance(kind, str) and kind in ALL_KINDS:
        return _foreign(kind, value, describe)
    text = "is required"
    if "kind" in value:
        names = f"{', '.join(ALL_KINDS[:-1])} or {ALL_KINDS[-1]}"
        text = f"must be {names}" + (did_you_mean(kind, ALL_KINDS) if isinstance(kind, str) else "")
    version = [] if value.get("apiVersion") == API_VERSION else [Fault("apiVersion", f"must be {API_VERSION}")]
    raise BadInput([*version, Fault("kind", text)])


def check_names(values: Sequence[Mapping[str, Any]]) -> None:
    """Raises BadInput where two jobs, given as plain values, have one name; what else may be wrong is not looked at."""
    first_of: dict[str, int] = {}
    faults = Faults()
    for number, value in enumerate(values, start=1):
        metadata = value.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        if isinstance(name, str) and (first := first_of.setdefault(name, number)) != number:
            faults.add(f"document {number}: metadata.name", f"must differ from that of document {first}")
    faults.check()


def _own(kind: str, value: dict[str, Any], describe: int) -> Document:
    model = KINDS[kind]
    try:
        content = model.model_validate(value)
    except ValidationError as error:
        raise bad_input(error, model, describe) from None
    return Document(kind, content.metadata.name, content, value)


def _foreign(kind: str, value: dict[str, Any], describe: int) -> Document:
    manifest = Place(value, faults=ManifestFaults(describe))
    versions = serving.VERSIONS[kind] if kind in serving.VERSIONS else _KUBEFLOW[kind].VERSIONS
    if value.get("apiVersion") not in versions:
        manifest.at("apiVersion").fault(f"must be {' or '.join(versions)}")
    if kind in serving.VERSIONS:
        served = serving.read(manifest)
        manifest.faults.check()
        why = f"{kind} {value['metadata']['name']}: what serves runs on Kubernetes; here only training runs"
        return Document(kind, value["metadata"]["name"], served, value, needs_cluster=why)
    job, draft = _KUBEFLOW[kind].convert(manifest)
    tags = tfjob.tags(manifest) if kind == "TFJob" else {}
    return Document(kind, job.metadata.name, job, value, tags, draft.needs_cluster)
