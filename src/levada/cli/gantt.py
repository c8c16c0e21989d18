"""Gantt chart in text: one line per job, one character per time slice.

    j05 resnet50  ····A444466666664422

Dots: the job waits. A letter: the GPU type on which it runs from here on; digits: its number of workers. Colours repeat
the GPU type, so the chart carries the same information without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

HOUR_S = 3600.0

#: Background colours of GPU types in the order of the cluster (blue, green, magenta, yellow, cyan, red).
_COLOURS = (44, 42, 45, 43, 46, 41)


class Glyphs(NamedTuple):
    """Characters to draw with."""

    waits: str
    shades: str  #: from empty to full
    line: str


UNICODE = Glyphs("·", " ▁▂▃▄▅▆▇█", "─")
ASCII = Glyphs(".", " .:-=+*#@", "-")


class Bar(NamedTuple):
    """A time interval with one grant."""

    begin: float
    end: float
    gpu_type: str
    workers: int


class ChartRow(NamedTuple):
    """One line of the chart."""

    label: str
    bars: Sequence[Bar]
    #: Times of submission and end.
    begin: float
    end: float


class Chart:
    """Time from 0 to *until* on *width* characters, labels and edges included."""

    def __init__(
        self, labels: Iterable[str], until: float, width: int, types: Sequence[str], glyphs: Glyphs, colour: bool
    ) -> None:
        self._label_width = max((len(label) for label in labels), default=0)
        self._slices = max(24, width - self._label_width - 2)
        self._slice_s = until / self._slices
        self._until = until
        self._letters = letters(types)
        self._codes = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(types)}
        self._glyphs, self._colour = glyphs, colour

    def axis(self) -> str:
        """Return the axis with as many hours as fit."""
        hours = int(self._until // HOUR_S)
        step = next((n for n in (1, 2, 3, 4, 6, 12, 24) if n * HOUR_S / self._slice_s >= 4), 24)
        line = " " * (self._label_width + 2)
        for hour in range(0, hours + 1, step):
            at = self._label_width + 2 + round(hour * HOUR_S / self._slice_s)
            if at + 2 <= self._label_width + 2 + self._slices:
                line = f"{line:<{at}}{hour:02}"
        return line

    def row(self, row: ChartRow) -> str:
        """Draw one job."""
        cells = [self._cell(row, at) for at in range(self._slices)]
        shown: list[str] = []
        before = ""
        for at, (kind, text) in enumerate(cells):
            if kind and kind != before:
                text = self._letters.get(kind, "?")
            before = kind
            shown.append(
                self._paint(text, kind, begins=at == 0 or cells[at - 1][0] != kind, ends=self._ends(cells, at))
            )
        return f"{row.label:<{self._label_width}}  {''.join(shown)}".rstrip()

    def level(self, label: str, use: Sequence[float]) -> str:
        """Draw utilization as shades; *use* has a fraction from 0 to 1 per slice."""
        top = len(self._glyphs.shades) - 1
        # Only 0 is drawn as empty, and only (nearly) 1 as full.
        marks = [0 if share <= 0 else top if share >= 0.995 else 1 + int(share * (top - 1)) for share in use]
        return f"{label:<{self._label_width}}  {''.join(self._glyphs.shades[mark] for mark in marks)}".rstrip()

    def shares(self, bars: Iterable[tuple[Bar, float]], whole: float) -> list[float]:
        """Return per slice the fraction of *whole* that the weighted bars use."""
        use = [0.0] * self._slices
        for bar, weight in bars:
            first, last = int(bar.begin / self._slice_s), min(int(bar.end / self._slice_s), self._slices - 1)
            for at in range(first, last + 1):
                overlap = min(bar.end, (at + 1) * self._slice_s) - max(bar.begin, at * self._slice_s)
                use[at] += weight * max(overlap, 0.0) / self._slice_s
        return [used / whole if whole else 0.0 for used in use]

    def _cell(self, row: ChartRow, at: int) -> tuple[str, str]:
        """Return type and text of a slice: those of its longest run; a wait only if nothing runs in it."""
        begin, end = at * self._slice_s, (at + 1) * self._slice_s
        longest, cell = 0.0, ("", " ")
        for bar in row.bars:
            overlap = min(bar.end, end) - max(bar.begin, begin)
            if overlap > longest:
                longest, cell = overlap, (bar.gpu_type, str(bar.workers) if bar.workers < 10 else "+")
        if longest == 0.0 and row.begin < end and row.end > begin:
            return "", self._glyphs.waits
        return cell

    @staticmethod
    def _ends(cells: list[tuple[str, str]], at: int) -> bool:
        return at + 1 == len(cells) or cells[at + 1][0] != cells[at][0]

    def _paint(self, text: str, gpu_type: str, *, begins: bool, ends: bool) -> str:
        if not self._colour or not gpu_type:
            return text
        start = f"\x1b[97;{self._codes.get(gpu_type, 100)}m" if begins else ""
        return start + text + ("\x1b[0m" if ends else "")


def letters(types: Sequence[str]) -> Mapping[str, str]:
    """Assign each type a distinct capital letter: the first unused letter of its name."""
    taken: dict[str, str] = {}
    for name in types:
        choices = [c for c in name.upper() if c.isalpha() and c not in taken.values()]
        taken[name] = choices[0] if choices else next(c for c in "XYZQWKJ?" if c not in taken.values())
    return taken
