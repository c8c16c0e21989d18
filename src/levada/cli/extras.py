"""Optional dependencies: the extra that installs a missing package."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from itertools import takewhile

from levada.errors import MissingExtra

#: Dependencies of policies, which the server and the simulator run.
_DECIDE = ("highspy", "numba", "numpy", "scipy")
#: Imported modules by the extra that installs them; the first one is checked to find out if the extra is installed.
MODULES: dict[str, tuple[str, ...]] = {
    "server": ("fastapi", "alembic", "prometheus_client", "sqlalchemy", "starlette", "uvicorn", "uvloop", *_DECIDE),
    "sim": ("polars", "pyarrow", *_DECIDE),
    "kubernetes": ("lightkube", "httpx2"),
    "postgres": ("asyncpg",),
    "gpu": ("pynvml",),
    "plot": ("matplotlib",),
    "dask": ("distributed",),
}
_SERVER_VERBS = ("up", "serve", "tour")
#: Verbs with subcommands.
_GROUPS = ("bench", "policy", "profile", "sim")


def require(extra: str, what: str) -> None:
    """Raise MissingExtra for the command *what* unless *extra* is installed."""
    if find_spec(MODULES[extra][0]) is None:
        raise MissingExtra(what, extra)


def missing_extra(words: Sequence[str], error: ModuleNotFoundError) -> MissingExtra | None:
    """Return the error for a module missing in the command line *words*; None if no extra installs it."""
    module = (error.name or "").partition(".")[0]
    extras = [extra for extra, modules in MODULES.items() if module in modules]
    if not extras or not words:
        return None
    verb = words[0]
    plain = takewhile(lambda word: not word.startswith("-"), words)
    what = " ".join(["levada", *list(plain)[: 2 if verb in _GROUPS else 1]])
    usual = "server" if verb in _SERVER_VERBS else "sim"
    return MissingExtra(what, usual if usual in extras else extras[0])
