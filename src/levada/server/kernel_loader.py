"""Let a server go over from interpreted to compiled kernels while it runs.

A server starts with interpreted kernels, which need no set-up, and a small one stays with them: numba takes 100 MB of
memory. Once its decisions are large enough, it loads compiled kernels in the background. Where the cache does not hold
them yet, another process of low priority fills it first.
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
    """Return once compiled kernels run, or cannot be had; *size* is that of the engine's state."""
    if not jit.is_available():
        _log.info("interpreting kernels: numba is not installed (pip install 'levada[server]')")
        return
    while not jit.is_worth_loading(size()):
        await asyncio.sleep(_CHECK_S)
    if not jit.is_ready():
        _log.info("compiling kernels in the background (some minutes): %s", jit.cache_folder())
        if not await _fill_cache():
            return
    # Importing the compiler takes a second. Each kernel is then loaded when it is first called, in some milliseconds:
    # all of them at once would take 150 MB.
    await asyncio.to_thread(jit.install, compiles=False)
    _log.info("kernels are loaded from %s from now on", jit.cache_folder())


async def _fill_cache() -> bool:
    """Whether another process could fill the cache."""
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
            "cannot compile kernels, going on with interpreted ones: exit code %s, %s; "
            "run `levada precompile` to see why, or set LEVADA_KERNEL_CACHE to a folder that can be written to",
            compiler.returncode,
            last,
        )
    return jit.is_ready()
