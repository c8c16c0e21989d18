"""Traces: recorded jobs as columns, with readers and writers of several formats.

`read` detects the format from the content and reports all faults at once; `write` chooses it by the file's suffix.
"""

from levada.sim.traces.describe import Description, as_text, describe
from levada.sim.traces.files import WRITERS, find, parse, read, render, write
from levada.sim.traces.trace import Rate, Trace, TraceJob

__all__ = [
    "WRITERS", "Description", "Rate", "Trace", "TraceJob", "as_text", "describe", "find", "parse", "read", "render",
    "write",
]  # fmt: skip
