"""What the jobs of Kubeflow have in common: each is written down as a job of ours that remembers where values stood."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from levada.jobfile.faults import bad_input
from levada.jobfile.manifest import Place
from levada.jobfile.model import API_VERSION, Job
from levada.jobfile.pods import Pod
from levada.sdk.sending import PATHS_ANNOTATION, WORKDIR_ANNOTATION

#: Of `spec.runPolicy`; older versions have them in `spec` itself.
RUN_POLICY = (
    "cleanPodPolicy", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit", "schedulingPolicy", "suspend",
    "managedBy",
)  # fmt: skip
#: How often Kubernetes starts a failed job again unless told otherwise.
_USUAL_RETRIES = 6
_RESTART_POLICIES = ("Always", "OnFailure", "Never", "ExitCode")


class Draft:
    """A job of ours being written from a manifest."""

    def __init__(self, manifest: Place) -> None:
        self.manifest = manifest
        self.spec = manifest.at("spec")
        self._values: dict[str, Any] = {}
        self._places: dict[str, Place] = {}
        #: Why it can run on Kubernetes only.
        self.needs_cluster = ""
        self.put("metadata.name", manifest.at("metadata", "name").value, manifest.at("metadata", "name"))

    def put(self, path: str, value: Any, place: Place | None = None) -> None:
        """Sets a field of our job; None leaves it as it is unless given."""
        if place is not None:
            self._places[path] = place
        if value is not None:
            self._values[path] = value

    def group(self, groups: Place, name: str) -> Place:
        """One group of replicas, whichever case its name is written in."""
        found = next((key for key in groups.mapping() if str(key).lower() == name.lower()), name)
        group = groups.at(found)
        group.only(("replicas", "restartPolicy", "template"))
        if group.at("restartPolicy").given and group.at("restartPolicy").value not in _RESTART_POLICIES:
            group.at("restartPolicy").fault(f"must be {', '.join(_RESTART_POLICIES[:-1])} or {_RESTART_POLICIES[-1]}")
        return group

    def policy(self, name: str) -> Place:
        """A field of the run policy, wherever it is written."""
        inside = self.spec.at("runPolicy", name)
        return inside if inside.given else self.spec.at(name)

    def common(self, first: Place, restarts: Place) -> None:
        """Queue, labels, folder, limits: what is written alike in all kinds. *first* is the group whose pods count."""
        notes, labels = self.manifest.at("metadata", "annotations"), self.manifest.at("metadata", "labels")
        for place in (labels.at("levada.dev/queue"), notes.at("levada.dev/queue")):
            self.put("spec.queue", place.text(), place)
        own = {name: labels.at(name).text() for name in labels.mapping()}
        self.put("spec.labels", {name: text for name, text in own.items() if text is not None}, labels)
        self.spec.at("runPolicy").only(RUN_POLICY)
        for field, name in (("timeLimit", "activeDeadlineSeconds"), ("ttl", "ttlSecondsAfterFinished")):
            place = self.policy(name)
            self.put(f"spec.{field}", place.whole(), place)
        limit = self.policy("backoffLimit")
        again = restarts.at("restartPolicy").value not in (None, "Never")
        self.put("spec.retries", limit.whole() if limit.given else _USUAL_RETRIES if again else 0, limit)
        pod = Pod(first.at("template"))
        grace = pod.grace_s()
        self.put("spec.checkpoint", None if grace is None else {"gracePeriod": float(grace)})

    def takes(self, pod: Pod) -> None:
        """What one worker takes."""
        self.put("spec.resources", {"cpu": pod.cpu() / 1000, "memory": f"{pod.memory()}Mi"})
        self.put("spec.gpuTypes", pod.gpu_types(), pod.spec.at("nodeSelector"))

    def runs(self, pod: Pod, framework: str, command: list[str] | None = None) -> None:
        """What is run: the command of *pod*, or what of it is left for Levada."""
        words = pod.command() if command is None else command
        if not words:
            self.needs_cluster = f"{pod.main.path}.command is not given, and only its image knows what to run"
        if borrowed := pod.borrowed_env():
            self.needs_cluster = f"{pod.main.path}.env: only a cluster knows the value of {borrowed[0]}"
        note = self.manifest.at("metadata", "annotations", WORKDIR_ANNOTATION)
        workdir = note.text() or pod.workdir() or "."
        run = {"command": words, "env": self._paths() | pod.plain_env(), "workdir": workdir, "framework": framework}
        self.put("spec.run", run if words else None, pod.main)

    def _paths(self) -> dict[str, str]:
        """Where who submitted it finds programs."""
        note = self.manifest.at("metadata", "annotations", PATHS_ANNOTATION)
        try:
            found = json.loads(note.text() or "{}")
        except ValueError:
            found = None
        if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
            note.fault('must be a JSON object of texts, e.g. {"PATH": "/usr/bin"}')
            return {}
        return found

    def job(self) -> Job:
        """The checked job; raises BadInput with all faults, those of the manifest too, at their paths in it."""
        made: dict[str, Any] = {"apiVersion": API_VERSION, "kind": "Job", "metadata": {}, "spec": {"kubernetes": {}}}
        for path, value in self._values.items():
            *parents, name = path.split(".")
            below = made
            for parent in parents:
                below = below.setdefault(parent, {})
            below[name] = value
        faults = self.manifest.faults
        job = None
        try:
            job = Job.model_validate(made)
        except ValidationError as error:
            bad = bad_input(error, Job, faults.room)
            for fault in bad.faults:
                faults.add(_place_of(fault.path, self._places), fault.text)
            faults.more += bad.more
        faults.check()
        assert job is not None
        return job


def _place_of(path: str, places: Mapping[str, Place]) -> str:
    """Where in the manifest a field of our job was read from."""
    parts = path.replace("[", ".[").split(".")
    for length in range(len(parts), 0, -1):
        known = places.get(".".join(parts[:length]))
        if known is not None:
            return known.path
    return path
