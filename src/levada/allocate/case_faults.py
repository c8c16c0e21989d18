"""Inconsistencies between the parts of a case: names, references, GPU types.

This checks the raw case and skips values with a fault of their own, so that one mistake does not hide another and the
user sees all of them at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from levada.errors import Fault, did_you_mean, nearest

#: The queue of jobs that name none.
_DEFAULT_QUEUE = "default"
_BY_TYPE = ("guaranteed", "limit")


def faults_between(raw: dict[str, Any]) -> list[Fault]:
    """A fault for each value that is valid by itself but inconsistent with others."""
    types = _types(raw.get("cluster"))
    return [*_cluster_faults(raw.get("cluster"), types), *_job_faults(raw, types), *_queue_faults(raw, types)]


# --- parsing ----------------------------------------------------------------------------------------------------------


def _mapping(value: Any) -> dict[str, Any]:
    return {key: item for key, item in value.items() if isinstance(key, str)} if isinstance(value, dict) else {}


def _mappings(value: Any) -> list[tuple[int, dict[str, Any]]]:
    """The mappings of a list, with their indices."""
    items = enumerate(value) if isinstance(value, list) else ()
    return [(i, _mapping(item)) for i, item in items if isinstance(item, dict)]


def _names(value: Any, field: str) -> list[tuple[int, str]]:
    return [(i, item[field]) for i, item in _mappings(value) if isinstance(item.get(field), str)]


def _types(cluster: Any) -> list[str] | None:
    """The GPU types that the cluster names, even with count 0; None if unreadable."""
    cluster = _mapping(cluster)
    named = [cluster.get("gpus"), *(node.get("gpus") for _, node in _mappings(cluster.get("nodes")))]
    counts = [(name, count) for gpus in named for name, count in _mapping(gpus).items()]
    if not counts or not all(isinstance(count, int) for _, count in counts):
        return None
    return list(dict.fromkeys(name for name, _ in counts))


# --- faults -----------------------------------------------------------------------------------------------------------


def _cluster_faults(cluster: Any, types: list[str] | None) -> list[Fault]:
    if not isinstance(cluster, dict):
        return []
    if (cluster.get("gpus") is None) == (cluster.get("nodes") is None):
        return [Fault("cluster", "must have gpus or nodes, and not both")]
    return [
        *_repeated(_names(cluster.get("nodes"), "name"), "cluster.nodes[{}].name"),
        *_misspelt_types(cluster.get("prices"), types, "cluster.prices"),
    ]


def _job_faults(raw: dict[str, Any], types: list[str] | None) -> list[Fault]:
    entities, queues = _mapping(raw.get("entities")), _mapping(raw.get("queues"))
    ids = _names(raw.get("jobs"), "id")
    faults = _repeated(ids, "jobs[{}].id")
    for i, job in _mappings(raw.get("jobs")):
        entity, queue = job.get("entity"), job.get("queue", _DEFAULT_QUEUE)
        if entities and isinstance(entity, str) and entity not in entities:
            faults.append(Fault(f"jobs[{i}].entity", _not_among(entity, "entities", entities)))
        if queues and isinstance(queue, str) and queue not in queues and queue != _DEFAULT_QUEUE:
            faults.append(Fault(f"jobs[{i}].queue", _not_among(queue, "queues", queues)))
        faults += _misspelt_types(job.get("throughput"), types, f"jobs[{i}].throughput")
    return [*faults, *_pair_faults(raw, [name for _, name in ids], types)]


def _pair_faults(raw: dict[str, Any], ids: list[str], types: list[str] | None) -> list[Fault]:
    known, faults = set(ids), []
    first: dict[frozenset[str], int] = {}
    for i, pair in _mappings(raw.get("pairs")):
        faults += _misspelt_types(pair.get("throughput"), types, f"pairs[{i}].throughput")
        jobs = pair.get("jobs")
        if not (isinstance(jobs, list) and len(jobs) == 2 and all(isinstance(job, str) for job in jobs)):
            continue
        if jobs[0] == jobs[1]:
            faults.append(Fault(f"pairs[{i}].jobs", "must be two different jobs"))
        elif (earlier := first.setdefault(frozenset(jobs), i)) != i:
            faults.append(Fault(f"pairs[{i}].jobs", f"is the same pair as in pairs[{earlier}]"))
        faults += [
            Fault(f"pairs[{i}].jobs[{k}]", _not_among(job, "jobs", ids))
            for k, job in enumerate(jobs)
            if job not in known
        ]
    return faults


def _queue_faults(raw: dict[str, Any], types: list[str] | None) -> list[Fault]:
    queues = _mapping(raw.get("queues"))
    parents = {name: _mapping(queue).get("parent") for name, queue in queues.items()}
    faults: list[Fault] = []
    acyclic: set[str | None] = {None}  # queues whose chain of parents ends
    for name, parent in parents.items():
        queue = _mapping(queues[name])
        for field in _BY_TYPE:
            faults += _absent_types(queue.get(field), types, f"queues.{name}.{field}")
        if not isinstance(parent, str | None):
            continue
        if parent is not None and parent not in queues:
            faults.append(Fault(f"queues.{name}.parent", _not_among(parent, "queues", queues)))
            continue
        above: dict[str, None] = {}
        at: Any = name
        while isinstance(at, str) and at in parents and at not in acyclic and at not in above:
            above[at] = None
            at = parents[at]
        if above and at == name:
            faults.append(Fault(f"queues.{name}.parent", "must not form a cycle"))
        elif not (isinstance(at, str) and at in above):
            acyclic.update(above)
    return faults


def _absent_types(by_type: Any, types: list[str] | None, path: str) -> list[Fault]:
    """A fault for each guaranteed or limited type that the cluster does not have."""
    if types is None:
        return []
    has = f"it has {', '.join(types) or 'none'}"
    return [
        Fault(f"{path}.{name}", "the cluster has no such GPU type" + did_you_mean(name, types, has))
        for name, count in _mapping(by_type).items()
        if name not in types and count != 0
    ]


def _misspelt_types(by_type: Any, types: list[str] | None, path: str) -> list[Fault]:
    """A fault for each type that is probably a misspelt type of the cluster.

    Speeds and prices of absent types are allowed: users copy whole tables of them.
    """
    named = _mapping(by_type)
    missing = [name for name in types or () if name not in named]
    return [
        Fault(f"{path}.{name}", "the cluster has no such GPU type" + did_you_mean(name, missing))
        for name in named
        if types is not None and name not in types and nearest(name, missing)
    ]


def _not_among(name: str, what: str, known: Iterable[str]) -> str:
    return f"{name!r} is not among {what}" + did_you_mean(name, known)


def _repeated(names: list[tuple[int, str]], path: str) -> list[Fault]:
    first: dict[str, int] = {}
    faults: list[Fault] = []
    for i, name in names:
        earlier = first.setdefault(name, i)
        if earlier != i:
            faults.append(Fault(path.format(i), f"{name!r} is the same as in {path.rpartition('[')[0]}[{earlier}]"))
    return faults
