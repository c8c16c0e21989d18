"""The only access to an engine's private state, for tests of the engine itself.

Tests prefer `engine.query`, like everything outside of `levada.engine`. Only this function gives access to values without
a query (assignments and tables between two events) and allows to plant violations.
"""

from __future__ import annotations

from levada.engine import Engine
from levada.engine.state import State


def state_of(engine: Engine) -> State:
    """The state of *engine*, not a copy."""
    return engine._state
