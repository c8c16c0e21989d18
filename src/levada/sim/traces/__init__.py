"""Traces: jobs of the past, ours and others', as columns; readers and writers of their formats.

`read` sees from a file's content what it is and reports all its faults at once; `write` goes by the name's ending.
"""

from levada.sim.traces.describe import Description, as_text, describe
from levada.sim.traces.files import WRITERS, find, parse, read, render, write
from levada.sim.traces.trace import Rate, Trace, TraceJob

__all__ = [
    "WRITERS", "Description", "Rate", "Trace", "TraceJob", "as_text", "describe", "find", "parse", "read", "render",
    "write",
]  # fmt: skip
