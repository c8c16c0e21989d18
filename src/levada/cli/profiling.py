"""Measure the speed of jobs on a live server with rigid copies, alone or in pairs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from levada.errors import LevadaError

if TYPE_CHECKING:
    from levada.sdk.client import Client

_POLL_S = 0.1
#: Time limits for a job to start, to report its first steps, and to stop.
PATIENCE_S = 300.0
#: Warm-up after the first step that is not measured: a fraction of the measuring time, at most some seconds.
_WARM_UP_FRACTION, _MAX_WARM_UP_S = 0.25, 10.0
#: Minimum number of progress samples, and minimum time between the first and the last.
_MIN_SAMPLES, _MIN_SPAN_S = 3, 2.0
_FINISHED = ("Succeeded", "Failed", "Cancelled")


class Speed(NamedTuple):
    """The measured speed of one job."""

    job: str
    #: Steps/s; None if it could not be measured, then *why* says why.
    rate: float | None
    why: str = ""
    nodes: int = 0
    places: frozenset[tuple[str, tuple[str, ...]]] = frozenset()


class ProgressSamples:
    """Progress of a running job over time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._warm_up_s = min(_MAX_WARM_UP_S, _WARM_UP_FRACTION * seconds)
        self._samples: list[tuple[float, float]] = []

    def add(self, now: float, step: float) -> None:
        """Record *step* at *now* if it has changed; a lower step (a restart) discards the samples so far."""
        if self._samples and step < self._samples[-1][1]:
            self._samples = []
        if step > 0 and (not self._samples or step > self._samples[-1][1]):
            self._samples.append((now, step))

    @property
    def enough(self) -> bool:
        """Whether the samples cover the measuring time."""
        samples = self._after_warm_up()
        return len(samples) >= _MIN_SAMPLES and samples[-1][0] - samples[0][0] >= self._seconds

    def rate(self) -> float | None:
        """Return steps/s by least squares; None with too few samples."""
        samples = self._after_warm_up()
        if len(samples) < _MIN_SAMPLES or samples[-1][0] - samples[0][0] < min(_MIN_SPAN_S, self._seconds):
            return None
        mean_t = sum(at for at, _ in samples) / len(samples)
        mean_s = sum(step for _, step in samples) / len(samples)
        spread = sum((at - mean_t) ** 2 for at, _ in samples)
        return sum((at - mean_t) * (step - mean_s) for at, step in samples) / spread

    def _after_warm_up(self) -> list[tuple[float, float]]:
        """Return the samples without loading and warm-up."""
        if not self._samples:
            return []
        return [sample for sample in self._samples if sample[0] >= self._samples[0][0] + self._warm_up_s]


def copy_of(
    document: Mapping[str, Any], *, workers: int, gpu_type: str | None, part: float | None, limit_s: float, name: str
) -> dict[str, Any]:
    """Return a rigid copy of a job without dependencies and notifications, and with a time limit."""
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
    """Run *copies* at the same time and return their speeds; all are finished on return."""
    jobs = [job["id"] for job in client.submit(copies)]
    try:
        return _observe(client, jobs, seconds, patience_s)
    finally:
        _cancel_all(client, jobs, patience_s)


def _observe(client: Client, jobs: Sequence[str], seconds: float, patience_s: float) -> list[Speed]:
    views = [_running(client, job, patience_s) for job in jobs]
    idle = [view for view in views if view["phase"] != "Running"]
    if idle:
        return [Speed(view["id"], None, _why_not(view)) for view in views]
    samples = [ProgressSamples(seconds) for _ in jobs]
    until = time.monotonic() + patience_s + seconds
    while time.monotonic() < until and not all(series.enough for series in samples):
        time.sleep(_POLL_S)
        current: list[Any] = [client.get(job) for job in jobs]
        now = time.monotonic()
        if any(view["phase"] != "Running" for view in current):
            views = [{**before, "phase": view["phase"]} for before, view in zip(views, current, strict=True)]
            break
        views = list(current)
        for series, view in zip(samples, current, strict=True):
            series.add(now, float(view["progress"]["step"] or 0.0))
    return [_speed(view, series.rate()) for view, series in zip(views, samples, strict=True)]


def _running(client: Client, job: str, patience_s: float) -> Any:
    """Wait until the job runs; return its state also after the time limit."""
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
        return f"the job failed; see `levada logs {job}`"
    if phase in _FINISHED:
        return "the job finished too early: give it more steps, or lower --seconds"
    if phase == "Running":
        return "the job reported too few steps; its script must report progress with levada.runtime"
    return f"the job did not start: {view['reason']['text']}" if view.get("reason") else f"the job stayed {phase}"


def _cancel_all(client: Client, jobs: Iterable[str], patience_s: float) -> None:
    """Cancel all jobs and wait until their devices are free."""
    for action in (client.cancel, lambda job: client.wait(job, timeout_s=patience_s)):
        for job in jobs:
            _try(action, job)


def _try(action: Callable[[str], Any], job: str) -> None:
    try:
        action(job)
    except (LevadaError, TimeoutError):
        return  # It is finished, or its time limit will stop it.
