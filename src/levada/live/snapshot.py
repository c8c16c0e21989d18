"""The whole engine as bytes that tell when they are damaged, or of another version."""

from __future__ import annotations

import hashlib
import zlib
from functools import cache
from pathlib import Path

from levada import __version__
from levada import engine as engine_package
from levada.engine import Engine
from levada.errors import LevadaError
from levada.plugins import find_policy
from levada.sim import pickled

_MARK = b"levada engine\n"
_DIGEST = 32
#: Packages whose objects are part of an engine's state.
_PACKAGES = ("core", "engine", "perf", "policies", "solve")


class Unusable(LevadaError):
    """A snapshot that cannot be used; an older one, or the log, can."""


@cache
def _build() -> bytes:
    """This version, and this very state of the code whose objects are in a snapshot."""
    root = Path(engine_package.__file__).parents[1]
    digest = hashlib.sha256()
    for name in _PACKAGES:
        for path in sorted((root / name).rglob("*.py")):
            digest.update(path.read_bytes())
    return f"{__version__} {digest.hexdigest()[:16]}".encode()


def freeze(engine: Engine) -> bytes:
    """The engine as it is; raises LevadaError where its policy's state cannot be written down."""
    engine.state.learn()
    body = zlib.compress(pickled.dumps(engine.state, without=find_policy), 1)
    head = _MARK + _build() + b"\n"
    return head + hashlib.sha256(body).digest() + body


def thaw(data: bytes) -> Engine:
    """The engine that was; raises Unusable."""
    if not data.startswith(_MARK):
        raise Unusable("it is no snapshot of an engine")
    version, newline, rest = data[len(_MARK) :].partition(b"\n")
    if not newline or version != _build():
        raise Unusable(f"it is of another Levada ({version.decode(errors='replace')[:20]}; this is {__version__})")
    digest, body = rest[:_DIGEST], rest[_DIGEST:]
    if hashlib.sha256(body).digest() != digest:
        raise Unusable("it is damaged")
    engine = Engine.__new__(Engine)
    try:
        engine.state = pickled.loads(zlib.decompress(body))
        # Who makes policies is not in the bytes: it could be called by them.
        engine.state.make_policy = find_policy
    except Exception as broken:
        raise Unusable(f"it cannot be read ({type(broken).__name__}: {broken})") from broken
    perf = engine.state.perf
    if hasattr(perf, "attach"):
        perf.attach(engine.state.world.workloads, engine.state.world.inventory.types)
    return engine
