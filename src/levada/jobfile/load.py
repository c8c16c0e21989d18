"""A job file as checked models, or every fault in it."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from levada.errors import BadInput, Fault
from levada.jobfile.faults import faults_of
from levada.jobfile.model import API_VERSION, KINDS, Job, Queue
from levada.jobfile.text import parse_documents


def load(text: str) -> list[Job | Queue]:
    """The jobs and queues of a YAML or JSON text, in its order; raises BadInput with all faults.

    A document may also be a list of them. Where there are several, the path of a fault begins with its number.
    """
    documents: list[Any] = []
    for document in parse_documents(text):
        documents += document if isinstance(document, list) else [document]
    if not documents:
        raise BadInput.one("the file holds no job")

    loaded: list[Job | Queue] = []
    faults: list[Fault] = []
    first_of: dict[tuple[str, str], int] = {}
    for number, document in enumerate(documents, start=1):
        prefix = f"document {number}: " if len(documents) > 1 else ""
        found = _read(document)
        if isinstance(found, list):
            faults += [Fault(prefix + fault.path if fault.path else prefix.rstrip(": "), fault.text) for fault in found]
            continue
        first = first_of.setdefault((found.kind, found.metadata.name), number)
        if first != number:
            faults.append(Fault(f"{prefix}metadata.name", f"must differ from that of document {first}"))
        loaded.append(found)
    if faults:
        raise BadInput(faults)
    return loaded


def _read(document: Any) -> Job | Queue | list[Fault]:
    """The document as its model, or its faults."""
    if not isinstance(document, dict):
        return [Fault("", "must be a mapping with apiVersion, kind, metadata and spec")]
    kind = document.get("kind")
    model = KINDS.get(kind) if isinstance(kind, str) else None
    if model is None:
        text = f"must be {' or '.join(KINDS)}" if "kind" in document else "is required"
        version = [] if document.get("apiVersion") == API_VERSION else [Fault("apiVersion", f"must be {API_VERSION}")]
        return [*version, Fault("kind", text)]
    try:
        return model.model_validate(document)
    except ValidationError as error:
        return faults_of(error, model)
