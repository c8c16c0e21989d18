"""`levada precompile`: fill the cache of compiled kernels."""

from __future__ import annotations

import typer

from levada.cli.output import message
from levada.errors import BadInput, MissingExtra


def register(app: typer.Typer) -> None:
    """Add the verb `precompile`."""
    app.command("precompile")(precompile)


def precompile() -> None:
    """Compile the kernels into the cache ahead of time.

    Servers and simulations load compiled kernels from the cache. Without it, a server interprets them for its first
    minutes, and a large simulation compiles them itself. Run this when you build an image, and set
    LEVADA_KERNEL_CACHE to a folder of the image. Default: ~/.cache/levada/kernels.
    """
    from levada import jit
    from levada.sim.precompile import precompile as fill_cache

    if not fill_cache():
        raise MissingExtra("levada precompile", "sim")
    if not jit.is_ready():
        raise BadInput.one(f"{jit.cache_folder()}: not writable; set LEVADA_KERNEL_CACHE to another folder")
    message(f"compiled kernels are in {jit.cache_folder()}")
