"""What a query names: enough of PromQL to tell whether all its metrics and labels are ours."""

from __future__ import annotations

import re
from collections.abc import Iterable

from levada.server.families import Family

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_WINDOW = re.compile(r"\[[^\]]*\]")
_SELECTOR = re.compile(r"(\w+)\s*\{([^}]*)\}")
_LABELS = re.compile(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_WORD = re.compile(r"\b[a-zA-Z_:]\w*\b(?!\s*\()")
_OPERATORS = frozenset({"and", "or", "unless", "bool", "offset"})
#: Prometheus adds the first to all it reads; the second tells the buckets of a histogram apart.
_GIVEN = frozenset({"instance", "le"})


def unknown_names(query: str, families: Iterable[Family]) -> list[str]:
    """The metrics and labels of *query* that none of *families* has, as they were written; none is what you want."""
    labels_of = {series: {*family.labels, *_GIVEN} for family in families for series in family.series}
    bare = _WINDOW.sub("", _STRING.sub("", query))
    unknown = []
    for metric, inside in _SELECTOR.findall(bare):
        wanted = [each.rstrip("=!~ ").strip() for each in inside.split(",") if each.strip()]
        unknown += [f"{metric}{{{label}}}" for label in wanted if label not in labels_of.get(metric, wanted)]
    plain = _LABELS.sub("", _SELECTOR.sub(r"\1", bare))
    named = [word for word in _WORD.findall(plain) if word not in _OPERATORS]
    unknown += [word for word in named if word not in labels_of]
    shared = set().union(*(labels_of.get(word, set()) for word in named))
    grouped = [label.strip() for inside in _LABELS.findall(bare) for label in inside.split(",") if label.strip()]
    return unknown + [label for label in grouped if label not in shared]
