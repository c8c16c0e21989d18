"""The interface of an adapter: what the backend must know about a kind of job.

Most kinds only name the fields of their spec; the methods here read and change them. All methods are pure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from levada.backends.kubernetes import names
from levada.backends.kubernetes.client import Resource
from levada.backends.kubernetes.objects import JobObject, PodObject

#: Keys of nested objects; `*` stands for every item of a list.
Path = tuple[str, ...]
WORKER, SERVER = "worker", "server"


class WorkerRange(msgspec.Struct, frozen=True, kw_only=True):
    """How many workers a job may have."""

    min: int
    max: int
    #: Whether its operator changes the number of running workers without a restart of the others.
    elastic: bool


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a job ended."""

    succeeded: bool
    why: str = ""


class JobKind(ABC):
    """A kind of job: sizes are numbers of workers, ordinals of workers start at 0."""

    resource: ClassVar[Resource]
    #: Names the group of its pods; kinds that make the same pods share it.
    pods_of: ClassVar[str]
    #: Kinds of objects that may own its pods besides the job itself.
    owners: ClassVar[tuple[str, ...]] = ()
    suspend: ClassVar[Path] = ("suspend",)
    #: Fields with the number of workers, and pod templates, that of the workers first.
    sizes: ClassVar[tuple[Path, ...]] = ()
    templates: ClassVar[tuple[Path, ...]] = ()
    #: Types of conditions that end a job.
    succeeded: ClassVar[str] = "Succeeded"
    failed: ClassVar[str] = "Failed"
    #: Levada creates and deletes the pods itself; there is no operator and no gate.
    makes_pods: ClassVar[bool] = False
    #: The object is the pod: a stop deletes it.
    is_pod: ClassVar[bool] = False

    @abstractmethod
    def job_of(self, pod: PodObject) -> str | None:
        """The name of the job that a pod claims to belong to."""

    @abstractmethod
    def place_of(self, job: JobObject, pod: PodObject) -> tuple[str, int | None]:
        """The group ("worker" or "server") and the ordinal of a pod; None if pods are interchangeable."""

    def owns(self, job: JobObject, pod: PodObject) -> bool:
        """Whether the pod was made for this very object."""
        owner = pod.metadata.controller
        return owner is not None and (owner.uid == job.metadata.uid or owner.kind in self.owners)

    def is_suspended(self, job: JobObject) -> bool:
        """Whether the job has no pods by its own spec."""
        return bool(_value(job.spec, self.suspend))

    def size(self, job: JobObject) -> int:
        """The number of workers in the spec."""
        return int(_value(job.spec, self.sizes[0], 1))

    def servers(self, job: JobObject) -> int:
        """The number of pods that are not workers and need a place of their own."""
        return 0

    def planned(self, job: JobObject, size: int, *, suspend: bool) -> Mapping[str, Any]:
        """The spec with this size, suspended or not, and with Levada's gate in every pod template."""
        spec = job.spec
        for path in self.sizes:
            spec = _changed(spec, path, size)
        return gated(_changed(spec, self.suspend, suspend), self.templates)

    def workers(self, job: JobObject) -> WorkerRange:
        """The range of sizes; annotations count before the spec."""
        notes, size = job.metadata.annotations, self.size(job)
        least, most = (_whole(notes.get(name)) for name in (names.MIN_WORKERS, names.MAX_WORKERS))
        elastic = self.is_elastic(job)
        return WorkerRange(min=least or size, max=max(most or size, least or size), elastic=elastic)

    def is_elastic(self, job: JobObject) -> bool:
        """Whether the job resizes without a restart of the remaining workers."""
        return False

    def may_move(self, job: JobObject, workers: int) -> bool:
        """Whether this number of workers may be deleted, so that their replacements go elsewhere."""
        return True

    def ending(self, job: JobObject, pods: Sequence[PodObject]) -> Ending | None:
        """How the job ended; None while it has not."""
        conditions = job.conditions
        if self.succeeded in conditions:
            return Ending(succeeded=True, why=conditions[self.succeeded])
        return Ending(succeeded=False, why=conditions[self.failed]) if self.failed in conditions else None

    def pod_templates(self, job: JobObject) -> list[Mapping[str, Any]]:
        """The pod templates, that of the workers first."""
        return [template for path in self.templates for template in _values(job.spec, path)]


def gated(spec: Mapping[str, Any], templates: Sequence[Path]) -> Mapping[str, Any]:
    """A spec with Levada's gate in its pod templates."""
    for path in templates:
        for gates in _values(spec, path):
            present = (gates.get("spec") or {}).get("schedulingGates") or []
            if all(gate.get("name") != names.GATE for gate in present):
                spec = _edited(spec, path, _with_gate)
                break
    return spec


def _with_gate(template: Mapping[str, Any]) -> Mapping[str, Any]:
    gates = (template.get("spec") or {}).get("schedulingGates") or []
    if any(gate.get("name") == names.GATE for gate in gates):
        return template
    return {**template, "spec": {**(template.get("spec") or {}), "schedulingGates": [*gates, {"name": names.GATE}]}}


def _values(value: Any, path: Path) -> Iterator[Any]:
    """The values at a path that exist."""
    if not path:
        yield value
    elif path[0] == "*":
        for item in value or ():
            yield from _values(item, path[1:])
    elif isinstance(value, Mapping) and path[0] in value:
        yield from _values(value[path[0]], path[1:])


def _value(value: Any, path: Path, otherwise: Any = None) -> Any:
    found = next(_values(value, path), None)
    return otherwise if found is None else found


def _changed(spec: Mapping[str, Any], path: Path, value: Any) -> Mapping[str, Any]:
    """A copy of *spec* with another value at *path*."""
    return _edited(spec, path, lambda _: value)


def _edited(value: Any, path: Path, edit: Any) -> Any:
    if not path:
        return edit(value)
    if path[0] == "*":
        return [_edited(item, path[1:], edit) for item in value or ()]
    below = value if isinstance(value, Mapping) else {}
    return {**below, path[0]: _edited(below.get(path[0]), path[1:], edit)}


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def index_label(pod: PodObject, label: str) -> int | None:
    """The number in a label of a pod."""
    return _whole(pod.metadata.labels.get(label))
