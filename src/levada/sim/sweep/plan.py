"""What runs a sweep has: the settings that all have in common, crossed with the values of each axis."""

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

#: What may have several values, in the order in which runs are listed.
AXES = ("policy", "cluster", "rate", "jobs", "profiling", "reference_models", "seed")

#: More runs than this are a slip of the pen.
MOST_RUNS = 100_000


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a sweep."""

    #: Its name: the same place in a sweep has the same one, whatever else there is.
    key: str
    settings: Settings
    #: All that its result depends on; another text, another result.
    fingerprint: str
    #: Stop it when its queue grows without bound.
    judged: bool
    #: Write down who ran when and where.
    timeline: bool


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep."""

    #: What all runs have in common; what it says of an axis with values does not count.
    common: Settings
    #: Values by axis.
    axes: Mapping[str, tuple[Any, ...]]
    judged: bool = True
    timeline: bool = False
    #: Jobs per hour that a policy can bear, by GPUs by type; higher rates are left out.
    cutoffs: tuple[tuple[Mapping[str, int], str, float], ...] = ()

    def tasks(self) -> list[Task]:
        """All runs, each once, in the order of the axes; raises BadInput with the faults of all of them."""
        names = [name for name in AXES if self.axes.get(name)]
        count = 1
        for name in names:
            count *= len(self.axes[name])
        if count > MOST_RUNS:
            raise BadInput.one(f"that would be {count:,} runs; at most {MOST_RUNS:,} make a sweep")
        values = [tuple(_unique(self.axes[name])) for name in names]
        made = [
            msgspec.structs.replace(self.common, **dict(zip(names, chosen, strict=True))) for chosen in product(*values)
        ]
        made = [settings for settings in made if not self._is_cut(settings)]
        if not made:
            raise BadInput.one("--cutoffs leaves no run: every rate is above what its policy can bear")
        _raise_faults(made)
        files = _Digests()
        return [
            Task(
                key=key_of(settings),
                settings=settings,
                fingerprint=_fingerprint(settings, files, judged=self.judged, timeline=self.timeline),
                judged=self.judged,
                timeline=self.timeline,
            )
            for settings in made
        ]

    def shared(self) -> dict[str, Any]:
        """What all runs have in common, in plain words: two plans that differ here must not share a folder."""
        plain = msgspec.to_builtins(self.common)
        files = _Digests()
        told = {name: value for name, value in sorted(plain.items()) if name not in (*AXES, "rounds", "checkpoint")}
        contents = {name: files.of(plain[name]) for name in ("trace", "workload", "throughputs", "prices_dir")}
        return {
            "levada": __version__,
            **told,
            "judged": self.judged,
            "timeline": self.timeline,
            "files": {name: digest for name, digest in contents.items() if digest},
        }

    def _is_cut(self, settings: Settings) -> bool:
        rate = settings.rate or 0.0
        return any(
            dict(gpus) == dict(settings.cluster) and policy == settings.policy and rate > most
            for gpus, policy, most in self.cutoffs
        )


def key_of(settings: Settings) -> str:
    """The name of a run: what its axes say, shortened to what a file name can hold."""
    # The order of types is part of a cluster: it breaks ties between them.
    place = {name: getattr(settings, name) for name in AXES} | {"cluster": list(settings.cluster.items())}
    return hashlib.sha256(msgspec.json.encode(place, order="deterministic")).hexdigest()[:20]


def comes_at_a_rate(settings: Settings) -> bool:
    """Whether jobs come one by one: without that no queue grows without bound."""
    return settings.trace is None and settings.rate != 0


def parse_cutoffs(text: bytes, file: str) -> tuple[tuple[Mapping[str, int], str, float], ...]:
    """The rates in a file like Gavel's: `{"v100:36|p100:36|k80:36": {"fifo": 2.5}}`; raises BadInput."""
    how = 'must be like {"v100:36|p100:36": {"fifo": 2.5}}, jobs per hour by cluster and policy'
    try:
        raw = msgspec.json.decode(text, type=dict[str, dict[str, float]])
        return tuple(
            (
                {name: int(count) for name, _, count in (part.partition(":") for part in cluster.split("|"))},
                policy,
                most,
            )
            for cluster, by_policy in raw.items()
            for policy, most in by_policy.items()
        )
    except (msgspec.DecodeError, ValueError) as error:
        raise BadInput.one(f"--cutoffs {file}: {how} ({error})") from None


def _unique(values: tuple[Any, ...]) -> list[Any]:
    """Each value once, in the order given."""
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _raise_faults(made: list[Settings]) -> None:
    """Raises BadInput with what is wrong with any run, as far as can be seen before it begins; each fault once."""
    faults: dict[Fault, None] = {}
    looked: set[bytes] = set()
    for settings in made:
        # A run differs in nothing but luck from one with another seed, load or belief.
        kind = msgspec.structs.replace(
            settings, seed=0, rate=settings.rate and 1.0, profiling=1.0, reference_models=None
        )
        name = msgspec.json.encode(kind, order="deterministic")
        try:
            check(settings)
            if name not in looked:
                looked.add(name)
                policy_of(settings)
                next(Source(settings).chunks(), None)
        except BadInput as error:
            faults |= dict.fromkeys(_with_place(fault, settings) for fault in error.faults)
    if faults:
        raise BadInput(faults)


def _with_place(fault: Fault, settings: Settings) -> Fault:
    """A fault of a job with the run that the job is of: other runs have other clusters and other jobs."""
    if not fault.path.startswith("job "):
        return fault
    cluster = ",".join(f"{name}={count}" for name, count in settings.cluster.items())
    return Fault(f"--cluster {cluster}, seed {settings.seed}, {fault.path}", fault.text)


class _Digests:
    """Fingerprints of what files hold, each read once."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def of(self, name: str | None) -> str:
        """Empty where there is no such file."""
        if not name:
            return ""
        if name not in self._known:
            path = find(name)
            inside = sorted(path.rglob("*")) if path.is_dir() else [path]
            digest = hashlib.sha256()
            for each in inside:
                if each.is_file():
                    digest.update(str(each.relative_to(path) if path.is_dir() else "").encode())
                    digest.update(hashlib.sha256(each.read_bytes()).digest())
            self._known[name] = digest.hexdigest() if any(each.is_file() for each in inside) else ""
        return self._known[name]


def _fingerprint(settings: Settings, files: _Digests, **more: bool) -> str:
    path, colon, _ = settings.policy.rpartition(":")
    own = path if colon and Path(path).suffix == ".py" else None
    contents = [files.of(name) for name in (settings.trace, settings.workload, settings.throughputs, own)]
    contents.append(files.of(settings.prices_dir))
    told = [__version__, settings, contents, more]
    return hashlib.sha256(msgspec.json.encode(told, order="deterministic")).hexdigest()
