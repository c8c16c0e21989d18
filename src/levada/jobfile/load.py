"""Load a job file: checked documents, or every fault in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from levada.errors import MOST_FAULTS, BadInput, Fault, Faults, did_you_mean
from levada.jobfile import batch_job, jobset, mpijob, own_job, pytorchjob, single_pod, tfjob, trainjob
from levada.jobfile.document import Document, Serving
from levada.jobfile.faults import bad_input
from levada.jobfile.kubeflow import QUEUE
from levada.jobfile.limits import JOB_FILE, check_documents
from levada.jobfile.manifest import ManifestFaults, ManifestValue
from levada.jobfile.model import API_VERSION, KINDS
from levada.jobfile.text import parse_any

#: Jobs of Kubernetes. There are two kinds named Job, which apiVersion tells apart.
_OPERATED = {"MPIJob": mpijob, "PyTorchJob": pytorchjob, "TFJob": tfjob, "JobSet": jobset, "TrainJob": trainjob}
#: The API versions of serving pods; the guide to SERVING_POD uses apps/v1 for pods, too.
_SERVING = {"Pod": ("v1", "apps/v1"), "Deployment": ("apps/v1",)}
#: The annotations that mark serving pods, Levada's first.
_SERVING_ANNOTATIONS = ("levada.dev/serving", "SERVING_POD")
#: All supported kinds of documents.
ALL_KINDS = (*KINDS, *_OPERATED, *_SERVING)


def load(text: str) -> list[Document]:
    """The documents of a YAML or JSON text; raises BadInput with all faults.

    A document may also be a list of documents. With several documents, the path of a fault starts with the document
    number.
    """
    values: list[Any] = []
    faults = Faults()
    for value in parse_any(text, JOB_FILE, faults):
        values += value if isinstance(value, list) else [value]
    if not values:
        raise BadInput.one("the file contains no job")
    check_documents(len(values))

    loaded: list[Document] = []
    first_of: dict[tuple[bool, str, str], int] = {}
    for number, value in enumerate(values, start=1):
        prefix = f"document {number}: " if len(values) > 1 else ""
        try:
            document = check(value, faults.room)
        except BadInput as error:
            faults.take(error, in_document(prefix))
            continue
        # Jobs of all kinds share one namespace.
        key = (document.is_job, "" if document.is_job else document.kind, document.name)
        first = first_of.setdefault(key, number)
        if first != number:
            faults.add(f"{prefix}metadata.name", f"must differ from that of document {first}")
        loaded.append(document)
    faults.check()
    return loaded


def in_document(prefix: str) -> Callable[[Fault], Fault]:
    """Prefix the path of a fault with its document: `document 3: `, or empty."""
    return lambda fault: Fault(prefix + fault.path if fault.path else prefix.rstrip(": "), fault.text)


def check(value: Any, describe: int = MOST_FAULTS, *, adopted: bool = False) -> Document:
    """One document of any kind, as plain values; raises BadInput.

    Only *describe* of its faults get a text, the others are counted: the search for similar names takes time.
    *adopted*: an object of a cluster, which may have any name, and fields that Levada does not know.
    """
    if not isinstance(value, dict):
        raise BadInput.one("must be a mapping with apiVersion, kind, metadata and spec")
    kind = value.get("kind")
    if kind == "Job" and value.get("apiVersion") in batch_job.VERSIONS:
        return _operated(batch_job, value, describe, adopted)
    if isinstance(kind, str) and kind in KINDS:
        return _operated(own_job, value, describe, adopted) if adopted else _own(kind, value, describe)
    if isinstance(kind, str) and kind in ALL_KINDS:
        return _foreign(kind, value, describe, adopted)
    text = "is required"
    if "kind" in value:
        names = f"{', '.join(ALL_KINDS[:-1])} or {ALL_KINDS[-1]}"
        text = f"must be {names}" + (did_you_mean(kind, ALL_KINDS) if isinstance(kind, str) else "")
    version = [] if value.get("apiVersion") == API_VERSION else [Fault("apiVersion", f"must be {API_VERSION}")]
    raise BadInput([*version, Fault("kind", text)])


def check_names(values: Sequence[Mapping[str, Any]]) -> None:
    """Raise BadInput if two jobs, as plain values, have the same name."""
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


def _foreign(kind: str, value: dict[str, Any], describe: int, adopted: bool) -> Document:
    manifest = ManifestValue(value, faults=ManifestFaults(describe))
    if kind in _OPERATED:
        return _operated(_OPERATED[kind], value, describe, adopted)
    if kind == "Pod" and single_pod.is_training(manifest) and not _is_serving(manifest):
        return _operated(single_pod, value, describe, adopted)
    _check_version(manifest, _SERVING[kind])
    served = _serving(kind, manifest)
    manifest.faults.check()
    why = f"{kind} {value['metadata']['name']}: serving pods run only on Kubernetes"
    return Document(kind, value["metadata"]["name"], served, value, needs_cluster=why)


def _operated(converter: Any, value: dict[str, Any], describe: int, adopted: bool) -> Document:
    """A job that is an object of Kubernetes."""
    manifest = ManifestValue(value, faults=ManifestFaults(describe, lenient=adopted))
    _check_version(manifest, converter.VERSIONS)
    job, draft = converter.convert(manifest)
    return Document(
        value["kind"],
        value["metadata"]["name"] if adopted else job.metadata.name,
        job,
        value,
        tfjob.tags(manifest) if converter is tfjob else {},
        draft.needs_cluster,
        draft.elastic,
        draft.launcher,
    )


def _check_version(manifest: ManifestValue, versions: Sequence[str]) -> None:
    if manifest.at("apiVersion").value not in versions:
        manifest.at("apiVersion").fault(f"must be {' or '.join(versions)}")


def _is_serving(template: ManifestValue) -> bool:
    annotations = template.at("metadata", "annotations")
    return any(annotations.at(name).is_true() for name in _SERVING_ANNOTATIONS)


def _serving(kind: str, manifest: ManifestValue) -> Serving:
    """The serving pods of a Pod or Deployment; adds faults to the manifest."""
    template = manifest.at("spec", "template") if kind == "Deployment" else manifest
    if not _is_serving(template):
        job = f", or label it {QUEUE} to run it as a job" if kind == "Pod" else ""
        text = f'a {kind} is accepted only for serving: annotate it {_SERVING_ANNOTATIONS[0]}: "true"{job}'
        template.at("metadata", "annotations").fault(text)
    if not manifest.at("metadata", "name").text():
        manifest.at("metadata", "name").fault("is required")
    replicas = manifest.at("spec", "replicas").whole() if kind == "Deployment" else 1
    return Serving(replicas=1 if replicas is None else replicas)
