"""SIGTERM protection for data loader processes of torch.

The supervisor sends SIGTERM to the whole process group. A data loader must survive it: the step under way needs its
data, and torch raises an error in the worker if a loader ends. The worker ends its loaders when it leaves.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any


class IgnoresStop:
    """A `worker_init_fn` for torch's DataLoader that then calls the original one."""

    def __init__(self, then: Callable[[int], None] | None) -> None:
        self._then = then

    def __call__(self, number: int) -> None:
        # Blocked and not ignored: the worker may end this process by the same signal and then waits for it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_with_worker, name="levada", daemon=True).start()
        if self._then is not None:
            self._then(number)


def _end_with_worker() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


def protect_loaders() -> None:
    """Patch torch's DataLoader, if it is imported, to use `IgnoresStop` in all loaders of this process.

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
