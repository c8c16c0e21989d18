"""Switch a running server from interpreted to compiled kernels.

A server starts with interpreted kernels, and a small one keeps them: numba takes 100 MB of memory. Once its decisions
are large enough, the server loads compiled kernels in the background. If the cache does not contain them yet, a process
of low priority compiles them first.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable

from levada import jit

_log = logging.getLogger(__name__)

_CHECK_S = 5.0
_FILL_CACHE = "import os; os.nice(19); from levada.sim.precompile import precompile; precompile()"


async def load_kernels(size: Callable[[], int]) -> None:
    """Return when compiled kernels are in use or not available; *size* returns the size of the scheduling problem."""
    if not jit.is_available():
        _log.info("interpreting kernels: numba is not installed (pip install 'levada[server]')")
        return
    while not jit.is_worth_loading(size()):
        await asyncio.sleep(_CHECK_S)
    if not jit.is_ready():
        _log.info("compiling kernels in the background (a few minutes): %s", jit.cache_folder())
        if not await _fill_cache():
            return
    # The import of numba takes 1 s. Each kernel is loaded at its first call, in a few milliseconds; all of them would
    # take 150 MB.
    await asyncio.to_thread(jit.install, compiles=False)
    _log.info("loaded compiled kernels: %s", jit.cache_folder())


async def _fill_cache() -> bool:
    """Compile the kernels in another process; return whether the cache contains them."""
    compiler = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _FILL_CACHE,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, errors = await compiler.communicate()
    except asyncio.CancelledError:
        compiler.kill()
        await compiler.wait()
        raise
    if not jit.is_ready():
        last = errors.decode(errors="replace").strip().rpartition("\n")[2]
        _log.warning(
            "cannot compile kernels, using interpreted ones: exit code %s, %s; "
            "run `levada precompile` to see why, or set LEVADA_KERNEL_CACHE to a writable directory",
            compiler.returncode,
            last,
        )
    return jit.is_ready()
