"""The default order in which jobs are served."""

from __future__ import annotations

import numpy as np

from levada.core.types import Ints
from levada.tables.snapshot import Snapshot


def by_importance(snap: Snapshot) -> Ints:
    """Rows by descending priority, then in order of submission."""
    priority = snap.jobs.priority
    if not priority.any():
        return np.arange(len(snap))
    return np.argsort(-priority, kind="stable")
