"""Families as the Prometheus client has them: those filled at each question, and those that count along."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from levada.server.families import Family

# When a counter began is of no use to anybody here, and would double the text.
disable_created_metrics()  # type: ignore[no-untyped-call]  # prometheus_client has no type there


def gauge(family: Family) -> GaugeMetricFamily:
    """A gauge to fill with what is."""
    return GaugeMetricFamily(family.name, family.help, labels=family.labels)


def tally(family: Family) -> CounterMetricFamily:
    """A counter to fill with what somebody else has counted."""
    return CounterMetricFamily(family.name, family.help, labels=family.labels)


def counter(family: Family, registry: CollectorRegistry) -> Counter:
    """A counter that counts along."""
    return Counter(family.name, family.help, family.labels, registry=registry)


def histogram(family: Family, registry: CollectorRegistry) -> Histogram:
    """A histogram that counts along."""
    return Histogram(family.name, family.help, family.labels, buckets=family.buckets, registry=registry)
