"""The module that scripts for Gavel import; see `levada.runtime.gavel`."""

from levada.runtime.gavel import GavelIterator

__all__ = ["GavelIterator"]
