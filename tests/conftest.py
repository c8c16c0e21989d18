"""Hypothesis profiles (HYPOTHESIS_PROFILE: quick, fast or thorough), skipped slow tests, and `--no-processes`."""

import os
import signal
import sys
import threading

import pytest
from hypothesis import HealthCheck, settings

# No deadline: the first example of a test may include imports and compilation. In CI the same code has the same examples,
# so that a failure there is caused by the change; elsewhere each run has new ones.
settings.register_profile(
    "fast",
    max_examples=50,
    deadline=None,
    derandomize=os.environ.get("CI") == "true",
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("quick", settings.get_profile("fast"), max_examples=5)
settings.register_profile("thorough", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))

# Background processes of a shell ignore SIGINT, and the processes that tests start would inherit that.
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


#: Audit events of the start of a process.
_STARTS = frozenset(("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that `make check` uses."""
    parser.addoption("--no-processes", action="store_true", help="fail tests that start a process")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Install the check with the first test: pytest itself has started its workers by then."""
    if item.config.getoption("no_processes") and not hasattr(sys, "_levada_no_processes"):
        sys._levada_no_processes = True  # type: ignore[attr-defined]
        sys.addaudithook(_refuse_processes)


def pytest_runtest_teardown() -> None:
    """Restore interpreted kernels: a simulation installs compiled ones in the whole process."""
    jit = sys.modules.get("levada.jit")
    if jit is not None:
        jit.uninstall()


def _refuse_processes(event: str, _arguments: tuple[object, ...]) -> None:
    if event in _STARTS:
        raise PermissionError(f"{event}: tests of `make check` start no processes; see UNIT in the Makefile")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip slow tests outside of CI, and tests with JAX and TensorFlow unless LEVADA_SLOW=1."""
    if os.environ.get("LEVADA_SLOW") == "1":
        return
    skip_slow = pytest.mark.skip(reason="slow: runs in CI, or with LEVADA_SLOW=1")
    skip_frameworks = pytest.mark.skip(reason="JAX and TensorFlow: with LEVADA_SLOW=1")
    for item in items:
        if item.get_closest_marker("frameworks") is not None:
            item.add_marker(skip_frameworks)
        elif item.get_closest_marker("slow") is not None and os.environ.get("CI") != "true":
            item.add_marker(skip_slow)
