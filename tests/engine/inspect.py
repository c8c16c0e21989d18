"""The one way into an engine's private state, for tests of the engine itself.

Tests prefer `engine.query`, as everything outside `levada.engine` does. What a query does not tell (the planes and
tables between two events, a fault planted on purpose) is reached from here and from nowhere else.
"""

from __future__ import annotations

from levada.engine import Engine
from levada.engine.state import State


def state_of(engine: Engine) -> State:
    """The state of *engine*, itself and not a copy."""
    return engine._state
