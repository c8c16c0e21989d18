"""`levada precompile`."""

from __future__ import annotations

import typer

from levada.cli.output import chatter
from levada.errors import BadInput


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("precompile")(precompile)


def precompile() -> None:
    """Compile the kernels ahead, into the cache.

    Simulations and servers load compiled kernels from the cache; without it a server interprets them for its first
    minutes, and a large simulation compiles them itself. Run this when you build an image, with LEVADA_KERNEL_CACHE
    naming a folder of the image. The default is ~/.cache/levada/kernels.
    """
    from levada import jit
    from levada.sim.precompile import precompile as fill_cache

    if not fill_cache():
        raise BadInput.one("numba is not installed: install levada with its extra `server` or `sim`")
    if not jit.is_ready():
        raise BadInput.one(f"{jit.cache_folder()} cannot be written to: set LEVADA_KERNEL_CACHE to another folder")
    chatter(f"compiled kernels are in {jit.cache_folder()}")
