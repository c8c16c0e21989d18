"""Resource requests of a pod, as kube-scheduler counts them.

Init containers, sidecars, overhead and pod-level resources included.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache

import msgspec

from levada.backends.kubernetes import names
from levada.backends.kubernetes.objects import Amounts, PodSpec, Requirements

_QUANTITY = re.compile(r"([+-]?[\d.]+)(?:[eE]([+-]?\d+)|([numkMGTPE]|[KMGTPE]i)?)")
_BINARY = {f"{letter}i": Fraction(1024) ** power for power, letter in enumerate("KMGTPE", 1)}
_DECIMAL = {letter: Fraction(1000) ** power for power, letter in enumerate("kMGTPE", 1)}
_SMALL = {letter: Fraction(1, 1000**power) for power, letter in enumerate("mun", 1)}
_FACTORS = {**_BINARY, **_DECIMAL, **_SMALL, "": Fraction(1)}
_MIB = 1024 * 1024


class PodDemand(msgspec.Struct, frozen=True, kw_only=True):
    """Requested resources: whole GPUs, 1/1000ths of cores, MiB."""

    gpus: int = 0
    cpu: int = 0
    memory: int = 0

    def __add__(self, other: PodDemand) -> PodDemand:
        return PodDemand(gpus=self.gpus + other.gpus, cpu=self.cpu + other.cpu, memory=self.memory + other.memory)


@lru_cache(maxsize=10_000)
def quantity(text: str | int | float) -> Fraction:
    """The number of a Kubernetes quantity such as `500m`, `2Gi` or `1e3`; 0 if it is not one."""
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        return Fraction(0)
    number, exponent, suffix = match.groups()
    try:
        return Fraction(number) * Fraction(10) ** int(exponent or 0) * _FACTORS[suffix or ""]
    except ValueError:
        return Fraction(0)


def demand(amounts: Amounts) -> PodDemand:
    """A list of resources, rounded up."""
    return PodDemand(
        gpus=math.ceil(sum(quantity(amounts[name]) for name in names.GPUS if name in amounts)),
        cpu=math.ceil(quantity(amounts.get("cpu", 0)) * 1000),
        memory=math.ceil(quantity(amounts.get("memory", 0)) / _MIB),
    )


def pod_demand(pod: PodSpec) -> PodDemand:
    """What a pod takes from its node.

    Containers and sidecars run together; an init container runs with the sidecars before it. What counts is the larger
    of both, per resource. Requests of the pod as a whole replace those of its containers.
    """
    together = _sum(_requested(container.resources) for container in pod.containers)
    sidecars: Counter[str] = Counter()
    peak: Counter[str] = Counter()
    for container in pod.init_containers:
        requested = _requested(container.resources)
        if container.restart_policy == "Always":
            sidecars.update(requested)
            peak |= sidecars
        else:
            peak |= _sum((requested, sidecars))
    total = _sum((together, sidecars)) | peak
    for name, amount in _requested(pod.resources).items():
        total[name] = amount
    total.update({name: _exact(amount) for name, amount in pod.overhead.items()})
    return demand({name: str(amount) for name, amount in _decimal(total).items()})


def _requested(resources: Requirements) -> Counter[str]:
    """Requests; a limit alone is a request, too."""
    return Counter({name: _exact(amount) for name, amount in {**resources.limits, **resources.requests}.items()})


def _exact(amount: str | int | float) -> int:
    """In 1/1000ths, so that counters add whole numbers."""
    return math.ceil(quantity(amount) * 1000)


def _decimal(total: Counter[str]) -> dict[str, str]:
    return {name: f"{amount}m" for name, amount in total.items()}


def _sum(counters: Iterable[Counter[str]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for counter in counters:
        total.update(counter)
    return total
