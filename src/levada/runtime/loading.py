"""Processes that load data for a worker, and SIGTERM: the supervisor sends it to the whole process group.

A process that loads data must not end by it: the step under way needs its data, and torch makes an error in the worker
of the loss. The worker itself ends its loading processes when it leaves.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any


class IgnoresStop:
    """A `worker_init_fn` for torch's DataLoader, before the one that there was."""

    def __init__(self, then: Callable[[int], None] | None) -> None:
        self._then = then

    def __call__(self, number: int) -> None:
        # Not ignored: the worker may end this process by the same signal, and waits for it then.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_with_worker, name="levada", daemon=True).start()
        if self._then is not None:
            self._then(number)


def _end_with_worker() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


def protect_loaders() -> None:
    """Gives every torch DataLoader of this process an `IgnoresStop`, where the script uses torch.

    For scripts that cannot be changed and do not expect SIGTERM.
    """
    torch = sys.modules.get("torch")
    loader = getattr(getattr(getattr(torch, "utils", None), "data", None), "DataLoader", None)
    if loader is None or hasattr(loader, "_levada_iter"):
        return
    loader._levada_iter = loader.__iter__

    def iterate(self: Any) -> Any:
        if self.num_workers and not isinstance(self.worker_init_fn, IgnoresStop):
            self.worker_init_fn = IgnoresStop(self.worker_init_fn)
        return self._levada_iter()

    loader.__iter__ = iterate
