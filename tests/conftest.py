"""Hypothesis profiles: `fast` by default, `thorough` with HYPOTHESIS_PROFILE=thorough."""

import os
import signal
import threading

from hypothesis import HealthCheck, settings

# No deadline: the first example of a test may pay for imports and compilation.
settings.register_profile("fast", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))

# What a shell starts in the background ignores Ctrl-C, and so would all that tests start and interrupt.
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
