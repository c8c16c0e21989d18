"""Measures the speed of jobs on a live server: rigid copies run alone, or two on the same devices, for a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from levada.errors import LevadaError

if TYPE_CHECKING:
    from levada.sdk.client import Client

_LOOK_S = 0.1
#: A job may take so long until it runs, until it makes its first steps, and to leave.
PATIENCE_S = 300.0
#: Steps are not counted for this part of the time after the first one, and no longer than so many seconds.
_WARM_PART, _WARM_S = 0.25, 10.0
#: A rate needs so many sightings of progress over so many seconds.
_LEAST_SIGHTINGS, _LEAST_S = 3, 2.0
_OVER = ("Succeeded", "Failed", "Cancelled")


class Speed(NamedTuple):
    """What one job reached."""

    job: str
    #: Steps/s; None where it could not be measured, and why.
    rate: float | None
    why: str = ""
    nodes: int = 0
    places: frozenset[tuple[str, tuple[str, ...]]] = frozenset()


class Sightings:
    """Steps of a running job as they are seen to grow."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._warm_s = min(_WARM_S, _WARM_PART * seconds)
        self._seen: list[tuple[float, float]] = []

    def see(self, now: float, step: float) -> None:
        """It is at this step now; only changes tell when it got there."""
        if self._seen and step < self._seen[-1][1]:
            self._seen = []  # it began again
        if step > 0 and (not self._seen or step > self._seen[-1][1]):
            self._seen.append((now, step))

    @property
    def enough(self) -> bool:
        """It was watched for long enough."""
        warm = self._warm()
        return len(warm) >= _LEAST_SIGHTINGS and warm[-1][0] - warm[0][0] >= self._seconds

    def rate(self) -> float | None:
        """Steps/s: the slope of the line that is nearest to what was seen; None where too little was."""
        seen = self._warm()
        if len(seen) < _LEAST_SIGHTINGS or seen[-1][0] - seen[0][0] < min(_LEAST_S, self._seconds):
            return None
        mean_t = sum(at for at, _ in seen) / len(seen)
        mean_s = sum(step for _, step in seen) / len(seen)
        spread = sum((at - mean_t) ** 2 for at, _ in seen)
        return sum((at - mean_t) * (step - mean_s) for at, step in seen) / spread

    def _warm(self) -> list[tuple[float, float]]:
        """Without the beginning, which contains loading and warm-up."""
        if not self._seen:
            return []
        return [each for each in self._seen if each[0] >= self._seen[0][0] + self._warm_s]


def copy_of(
    document: Mapping[str, Any], *, workers: int, gpu_type: str | None, part: float | None, limit_s: float, name: str
) -> dict[str, Any]:
    """A rigid copy of a job that stands for itself: nobody waits for it, and it does not run for ever."""
    spec = {
        key: value
        for key, value in document["spec"].items()
        if key not in ("after", "array", "deadline", "notify", "ttl", "epochs", "preemptible")
    }
    spec |= {"workers": workers, "retries": 0, "ttl": "1h", "timeLimit": f"{limit_s:.0f}s", "preemptible": False}
    if gpu_type is not None:
        spec["gpuTypes"] = [gpu_type]
    if part is not None:
        spec |= {"gpusPerWorker": part, "gpuMemory": spec.get("gpuMemory", "1Gi")}
    spec["labels"] = {**spec.get("labels", {}), "levada-profile": "yes"}
    return {**document, "metadata": {**document["metadata"], "name": name}, "spec": spec}


def measure(
    client: Client, copies: Sequence[dict[str, Any]], seconds: float, patience_s: float = PATIENCE_S
) -> list[Speed]:
    """Runs copies at the same time and tells what each reached; none of them is left when it returns."""
    jobs = [job["id"] for job in client.submit(copies)]
    try:
        return _watched(client, jobs, seconds, patience_s)
    finally:
        _ended(client, jobs, patience_s)


def _watched(client: Client, jobs: Sequence[str], seconds: float, patience_s: float) -> list[Speed]:
    views = [_running(client, job, patience_s) for job in jobs]
    idle = [view for view in views if view["phase"] != "Running"]
    if idle:
        return [Speed(view["id"], None, _why_not(view)) for view in views]
    sightings = [Sightings(seconds) for _ in jobs]
    until = time.monotonic() + patience_s + seconds
    while time.monotonic() < until and not all(each.enough for each in sightings):
        time.sleep(_LOOK_S)
        seen: list[Any] = [client.get(job) for job in jobs]
        now = time.monotonic()
        if any(view["phase"] != "Running" for view in seen):
            views = [{**before, "phase": view["phase"]} for before, view in zip(views, seen, strict=True)]
            break
        views = list(seen)
        for each, view in zip(sightings, seen, strict=True):
            each.see(now, float(view["progress"]["step"] or 0.0))
    return [_speed(view, each.rate()) for view, each in zip(views, sightings, strict=True)]


def _running(client: Client, job: str, patience_s: float) -> Any:
    """The job when it runs, or how it is when it does not."""
    try:
        return client.wait(job, timeout_s=patience_s, phases=["Running"])
    except TimeoutError:
        return client.get(job)


def _speed(view: Mapping[str, Any], rate: float | None) -> Speed:
    places = frozenset((worker["node"], tuple(worker["devices"])) for worker in view["workers"])
    return Speed(view["id"], rate, "" if rate is not None else _why_not(view), len(view["nodes"]), places)


def _why_not(view: Mapping[str, Any]) -> str:
    job, phase = view["id"], view["phase"]
    if phase == "Failed":
        return f"it failed; see levada logs {job}"
    if phase in _OVER:
        return "it ended before it could be measured: give it more steps, or less time with --seconds"
    if phase == "Running":
        return "it told of too few steps; does its script report progress (levada.runtime)?"
    return f"it did not run: {view['reason']['text']}" if view.get("reason") else f"it stayed {phase}"


def _ended(client: Client, jobs: Iterable[str], patience_s: float) -> None:
    """Cancels them all, and waits until their devices are free."""
    for act in (client.cancel, lambda job: client.wait(job, timeout_s=patience_s)):
        for job in jobs:
            _try(act, job)


def _try(act: Callable[[str], Any], job: str) -> None:
    try:
        act(job)
    except (LevadaError, TimeoutError):
        return  # it is over already, or its time limit ends it
