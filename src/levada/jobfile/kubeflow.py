"""The common part of Kubernetes jobs: a draft of a Levada job with paths."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from pydantic import ValidationError

from levada.jobfile import units
from levada.jobfile.faults import bad_input
from levada.jobfile.manifest import ManifestValue
from levada.jobfile.model import API_VERSION, Job
from levada.jobfile.pods import PodTemplate
from levada.sdk.prepare import PATHS_ANNOTATION, WORKDIR_ANNOTATION

#: Fields of `spec.runPolicy`; older versions have them in `spec`.
RUN_POLICY = (
    "cleanPodPolicy", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit", "schedulingPolicy", "suspend",
    "managedBy",
)  # fmt: skip
#: The label, or annotation, with the queue, and annotations that every kind may have.
QUEUE = "levada.dev/queue"
MIN_WORKERS, MAX_WORKERS = "levada.dev/min-workers", "levada.dev/max-workers"
PRIORITY, PREEMPTIBLE = "levada.dev/priority", "levada.dev/preemptible"
#: Stands for the name of an adopted object while its job is checked: any name that Kubernetes accepts is valid.
ADOPTED = "adopted"
#: The default `backoffLimit` of Kubernetes.
_USUAL_RETRIES = 6
_RESTART_POLICIES = ("Always", "OnFailure", "Never", "ExitCode")


class Draft:
    """A Levada job under construction from a manifest."""

    def __init__(self, manifest: ManifestValue) -> None:
        self.manifest = manifest
        self.spec = manifest.at("spec")
        self._values: dict[str, Any] = {}
        self._places: dict[str, ManifestValue] = {}
        #: Why it can run only on Kubernetes.
        self.needs_cluster = ""
        #: Why its size is fixed; empty if it is not.
        self.fixed = ""
        #: See `Document`.
        self.elastic = False
        self.launcher: tuple[int, int] | None = None
        name = manifest.at("metadata", "name")
        self.put("metadata.name", ADOPTED if manifest.faults.lenient else name.value, name)

    def put(self, path: str, value: Any, place: ManifestValue | None = None) -> None:
        """Set a field of the job; None keeps its default."""
        if place is not None:
            self._places[path] = place
        if value is not None:
            self._values[path] = value

    def group(self, groups: ManifestValue, name: str) -> ManifestValue:
        """One group of replicas; its name is case-insensitive."""
        key = next((key for key in groups.mapping() if str(key).lower() == name.lower()), name)
        group = groups.at(key)
        group.only(("replicas", "restartPolicy", "template"))
        if group.at("restartPolicy").given and group.at("restartPolicy").value not in _RESTART_POLICIES:
            group.at("restartPolicy").fault(f"must be {', '.join(_RESTART_POLICIES[:-1])} or {_RESTART_POLICIES[-1]}")
        return group

    def policy(self, name: str) -> ManifestValue:
        """A field of the run policy, from `spec.runPolicy` or from `spec`."""
        inside = self.spec.at("runPolicy", name)
        return inside if inside.given else self.spec.at(name)

    def common(self, first: ManifestValue, restarts: ManifestValue) -> None:
        """The fields common to all kinds: queue, labels, limits, retries.

        *first* is the group whose pod template is used.
        """
        self.metadata()
        self.spec.at("runPolicy").only(RUN_POLICY)
        for field, name in (("timeLimit", "activeDeadlineSeconds"), ("ttl", "ttlSecondsAfterFinished")):
            place = self.policy(name)
            self.put(f"spec.{field}", place.whole(), place)
        limit = self.policy("backoffLimit")
        restarts_pods = restarts.at("restartPolicy").value not in (None, "Never")
        self.put("spec.retries", limit.whole() if limit.given else _USUAL_RETRIES if restarts_pods else 0, limit)
        self.stops_in(PodTemplate(first.at("template")))

    def stops_in(self, pod: PodTemplate) -> None:
        """The time that a worker has to save its state."""
        grace = pod.grace_s()
        self.put("spec.checkpoint", None if grace is None else {"gracePeriod": float(grace)})

    def metadata(self) -> None:
        """Queue, labels, priority and preemptibility from labels and annotations."""
        notes, labels = self.manifest.at("metadata", "annotations"), self.manifest.at("metadata", "labels")
        for place in (labels.at(QUEUE), notes.at(QUEUE)):
            self.put("spec.queue", place.text(), place)
        own = {name: labels.at(name).text() for name in labels.mapping()}
        self.put("spec.labels", {name: text for name, text in own.items() if text is not None}, labels)
        priority, preemptible = notes.at(PRIORITY), notes.at(PREEMPTIBLE)
        self.put("spec.priority", priority.whole(-units.LARGEST), priority)
        if preemptible.given:
            text = str(preemptible.value).lower()
            self.put("spec.preemptible", {"true": True, "false": False}.get(text, text), preemptible)

    def takes(self, *pods: PodTemplate) -> None:
        """The resources of one worker: the most that one of *pods* reserves."""
        cpu, memory = max(pod.cpu() for pod in pods), max(pod.memory() for pod in pods)
        self.put("spec.resources", {"cpu": cpu / 1000, "memory": f"{memory}Mi"})
        self.put("spec.gpuTypes", pods[0].gpu_types(), pods[0].spec.at("nodeSelector"))

    @property
    def has_range(self) -> bool:
        """Whether annotations declare a range of sizes."""
        notes = self.manifest.at("metadata", "annotations")
        return notes.at(MIN_WORKERS).given or notes.at(MAX_WORKERS).given

    def _range(self) -> None:
        """Annotations for the range count before the spec, whose size is the requested one."""
        notes, workers = self.manifest.at("metadata", "annotations"), dict(self._values.get("spec.workers") or {})
        least, most = notes.at(MIN_WORKERS), notes.at(MAX_WORKERS)
        if not workers or not self.has_range:
            return
        size = workers.get("desired", workers["min"])
        for place, name in ((least, "min"), (most, "max")):
            bound = place.whole(1)
            if self.fixed and bound not in (None, size):
                place.fault(f"must be {size}: {self.fixed}")
            if bound is not None:
                workers[name] = bound
                self.put(f"spec.workers.{name}", None, place)
        if not most.given:
            workers["max"] = max(workers["max"], workers["min"])
        elif not least.given:
            workers["min"] = min(workers["min"], workers["max"])
        workers["desired"] = max(workers["min"], min(size, workers["max"]))
        self.put("spec.workers", workers)

    def runs(self, pod: PodTemplate, framework: str, command: list[str] | None = None) -> None:
        """The process: *command*, by default that of *pod*."""
        words = pod.command() if command is None else command
        if not words:
            self.needs_cluster = f"{pod.main.path}.command is missing; only the container image defines it"
        if unresolved := pod.unresolved_env():
            self.needs_cluster = unresolved
        note = self.manifest.at("metadata", "annotations", WORKDIR_ANNOTATION)
        workdir = note.text() or pod.workdir() or "."
        run = {"command": words, "env": self._paths() | pod.plain_env(), "workdir": workdir, "framework": framework}
        self.put("spec.run", run if words else None, pod.main)

    def _paths(self) -> dict[str, str]:
        """The search paths of the user who submitted the job."""
        note = self.manifest.at("metadata", "annotations", PATHS_ANNOTATION)
        try:
            paths = json.loads(note.text() or "{}")
        except ValueError:
            paths = None
        if not isinstance(paths, dict) or not all(isinstance(value, str) for value in paths.values()):
            note.fault('must be a JSON object of texts, e.g. {"PATH": "/usr/bin"}')
            return {}
        return paths

    def job(self, spec: Mapping[str, Any] | None = None) -> Job:
        """The checked job; raises BadInput with all faults, at their manifest paths. *spec* has other fields of it."""
        document: dict[str, Any] = {"apiVersion": API_VERSION, "kind": "Job", "metadata": {}}
        document["spec"] = deepcopy(spec) if spec else {"kubernetes": {}}
        self._range()
        for path, value in self._values.items():
            *parents, name = path.split(".")
            below = document
            for parent in parents:
                below = below.setdefault(parent, {})
            below[name] = value
        faults = self.manifest.faults
        job = None
        try:
            job = _validated(document, lenient=faults.lenient)
        except ValidationError as error:
            bad = bad_input(error, Job, faults.room)
            for fault in bad.faults:
                faults.add(_place_of(fault.path, self._places), fault.text)
            faults.more += bad.more
        faults.check()
        assert job is not None
        return job


def _validated(document: dict[str, Any], *, lenient: bool) -> Job:
    """The job; *lenient*: after its unknown fields were removed from *document*."""
    try:
        return Job.model_validate(document)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False) if lenient else []
        unknown = [detail["loc"] for detail in details if detail["type"] == "extra_forbidden"]
        if not unknown:
            raise
    for *parents, name in unknown:
        below: Any = document
        for parent in parents:
            below = below[parent]
        del below[name]
    return Job.model_validate(document)


def _place_of(path: str, places: Mapping[str, ManifestValue]) -> str:
    """The path in the manifest from which a field of the job was read."""
    parts = path.replace("[", ".[").split(".")
    for length in range(len(parts), 0, -1):
        known = places.get(".".join(parts[:length]))
        if known is not None:
            return known.path
    return path
