"""The runs of a sweep: common settings crossed with the values of each axis."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from levada import __version__
from levada.errors import BadInput, Fault
from levada.sim.build import policy_of
from levada.sim.settings import Settings, check
from levada.sim.source import Source
from levada.sim.traces import find

#: Settings that may have several values, in the order in which runs are listed.
AXES = ("policy", "cluster", "rate", "jobs", "profiling", "reference_models", "seed")

#: Limit, to catch typing errors.
MOST_RUNS = 100_000


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a sweep."""

    #: Name of the run; depends only on the values of its axes.
    key: str
    settings: Settings
    #: Digest of everything that the result depends on.
    fingerprint: str
    #: Stop the run when its queue grows without bound.
    judged: bool
    #: Record which job had which GPUs when.
    timeline: bool


class SweepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Common settings and axes of a sweep."""

    #: Settings of all runs; axes with values override them.
    common: Settings
    #: Values by axis.
    axes: Mapping[str, tuple[Any, ...]]
    judged: bool = True
    timeline: bool = False
    #: (GPUs by type, policy, highest rate in jobs per hour); runs with higher rates are skipped.
    cutoffs: tuple[tuple[Mapping[str, int], str, float], ...] = ()

    def tasks(self) -> list[Task]:
        """Return all runs, each once, in the order of the axes; raises BadInput with the faults of all runs."""
        names = [name for name in AXES if self.axes.get(name)]
        count = 1
        for name in names:
            count *= len(self.axes[name])
        if count > MOST_RUNS:
            raise BadInput.one(f"the sweep has {count:,} runs; the limit is {MOST_RUNS:,}")
        values = [tuple(_unique(self.axes[name])) for name in names]
        runs = [
            msgspec.structs.replace(self.common, **dict(zip(names, chosen, strict=True))) for chosen in product(*values)
        ]
        runs = [settings for settings in runs if not self._is_cut(settings)]
        if not runs:
            raise BadInput.one("--cutoffs leaves no run: every rate is above the cutoff of its policy")
        _raise_faults(runs)
        files = _Digests()
        return [
            Task(
                key=key_of(settings),
                settings=settings,
                fingerprint=_fingerprint(settings, files, judged=self.judged, timeline=self.timeline),
                judged=self.judged,
                timeline=self.timeline,
            )
            for settings in runs
        ]

    def shared(self) -> dict[str, Any]:
        """Return what all runs have in common as plain data; plans that differ here must not share a folder."""
        plain = msgspec.to_builtins(self.common)
        files = _Digests()
        settings = {name: value for name, value in sorted(plain.items()) if name not in (*AXES, "rounds", "checkpoint")}
        contents = {name: files.of(plain[name]) for name in ("trace", "workload", "throughputs", "prices_dir")}
        return {
            "levada": __version__,
            **settings,
            "judged": self.judged,
            "timeline": self.timeline,
            "files": {name: digest for name, digest in contents.items() if digest},
        }

    def _is_cut(self, settings: Settings) -> bool:
        rate = settings.rate or 0.0
        return any(
            dict(gpus) == dict(settings.cluster) and policy == settings.policy and rate > limit
            for gpus, policy, limit in self.cutoffs
        )


def key_of(settings: Settings) -> str:
    """Return the name of a run: a digest of its axes that fits into a file name."""
    # The order of types is part of a cluster, because it breaks ties.
    axes = {name: getattr(settings, name) for name in AXES} | {"cluster": list(settings.cluster.items())}
    return hashlib.sha256(msgspec.json.encode(axes, order="deterministic")).hexdigest()[:20]


def arrives_over_time(settings: Settings) -> bool:
    """Return whether jobs arrive over time; otherwise no queue grows without bound."""
    return settings.trace is None and settings.rate != 0


def parse_cutoffs(text: bytes, file: str) -> tuple[tuple[Mapping[str, int], str, float], ...]:
    """Parse rates in Gavel's format, `{"v100:36|p100:36|k80:36": {"fifo": 2.5}}`; raises BadInput."""
    how = 'must be like {"v100:36|p100:36": {"fifo": 2.5}}, jobs per hour by cluster and policy'
    try:
        raw = msgspec.json.decode(text, type=dict[str, dict[str, float]])
        return tuple(
            (
                {name: int(count) for name, _, count in (part.partition(":") for part in cluster.split("|"))},
                policy,
                limit,
            )
            for cluster, by_policy in raw.items()
            for policy, limit in by_policy.items()
        )
    except (msgspec.DecodeError, ValueError) as error:
        raise BadInput.one(f"--cutoffs {file}: {how} ({error})") from None


def _unique(values: tuple[Any, ...]) -> list[Any]:
    """Return each value once, in order."""
    unique: list[Any] = []
    for value in values:
        if value not in unique:
            unique.append(value)
    return unique


def _raise_faults(runs: list[Settings]) -> None:
    """Raise BadInput with all faults that can be detected before the runs begin, each once."""
    faults: dict[Fault, None] = {}
    checked: set[bytes] = set()
    for settings in runs:
        # Seed, rate and belief do not affect these checks.
        kind = msgspec.structs.replace(
            settings, seed=0, rate=settings.rate and 1.0, profiling=1.0, reference_models=None
        )
        name = msgspec.json.encode(kind, order="deterministic")
        try:
            check(settings)
            if name not in checked:
                checked.add(name)
                policy_of(settings)
                next(Source(settings).chunks(), None)
        except BadInput as error:
            faults |= dict.fromkeys(_with_run(fault, settings) for fault in error.faults)
    if faults:
        raise BadInput(faults)


def _with_run(fault: Fault, settings: Settings) -> Fault:
    """Add cluster and seed to the fault of a job, because other runs have other jobs."""
    if not fault.path.startswith("job "):
        return fault
    cluster = ",".join(f"{name}={count}" for name, count in settings.cluster.items())
    return Fault(f"--cluster {cluster}, seed {settings.seed}, {fault.path}", fault.text)


class _Digests:
    """Digests of files and folders, each read once."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def of(self, name: str | None) -> str:
        """Return the digest of a file or folder; "" if it does not exist."""
        if not name:
            return ""
        if name not in self._known:
            path = find(name)
            files = sorted(path.rglob("*")) if path.is_dir() else [path]
            digest = hashlib.sha256()
            for file in files:
                if file.is_file():
                    digest.update(str(file.relative_to(path) if path.is_dir() else "").encode())
                    digest.update(hashlib.sha256(file.read_bytes()).digest())
            self._known[name] = digest.hexdigest() if any(file.is_file() for file in files) else ""
        return self._known[name]


def _fingerprint(settings: Settings, files: _Digests, **more: bool) -> str:
    path, colon, _ = settings.policy.rpartition(":")
    policy_file = path if colon and Path(path).suffix == ".py" else None
    contents = [files.of(name) for name in (settings.trace, settings.workload, settings.throughputs, policy_file)]
    contents.append(files.of(settings.prices_dir))
    inputs = [__version__, settings, contents, more]
    return hashlib.sha256(msgspec.json.encode(inputs, order="deterministic")).hexdigest()
