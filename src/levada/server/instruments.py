"""Prometheus objects of metric families: filled at each scrape, or counters."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from levada.server.metric_defs import Family

# Creation times of counters are not used, and would double the size of the text.
disable_created_metrics()  # type: ignore[no-untyped-call]  # prometheus_client has no type there


def gauge(family: Family) -> GaugeMetricFamily:
    """Return a gauge to fill with current values."""
    return GaugeMetricFamily(family.name, family.help, labels=family.labels)


def tally(family: Family) -> CounterMetricFamily:
    """Return a counter to fill with totals that are counted elsewhere."""
    return CounterMetricFamily(family.name, family.help, labels=family.labels)


def counter(family: Family, registry: CollectorRegistry) -> Counter:
    """Return a counter that is incremented."""
    return Counter(family.name, family.help, family.labels, registry=registry)


def histogram(family: Family, registry: CollectorRegistry) -> Histogram:
    """Return a histogram that observes values."""
    return Histogram(family.name, family.help, family.labels, buckets=family.buckets, registry=registry)
