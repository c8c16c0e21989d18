"""Hypothesis profiles: `fast` by default, `thorough` with HYPOTHESIS_PROFILE=thorough; and which tests are too slow."""

import os
import signal
import threading

import pytest
from hypothesis import HealthCheck, settings

# No deadline: the first example of a test may pay for imports and compilation. In CI the same code has the same examples,
# so that a failure there is of what was changed; everywhere else they are new ones each time.
settings.register_profile(
    "fast",
    max_examples=50,
    deadline=None,
    derandomize=os.environ.get("CI") == "true",
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))

# What a shell starts in the background ignores Ctrl-C, and so would all that tests start and interrupt.
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests run in CI, those with JAX and TensorFlow only where somebody asks for them."""
    if os.environ.get("LEVADA_SLOW") == "1":
        return
    late = pytest.mark.skip(reason="slow: runs in CI, or with LEVADA_SLOW=1")
    asked = pytest.mark.skip(reason="JAX and TensorFlow: with LEVADA_SLOW=1")
    for item in items:
        if item.get_closest_marker("frameworks") is not None:
            item.add_marker(asked)
        elif item.get_closest_marker("slow") is not None and os.environ.get("CI") != "true":
            item.add_marker(late)
