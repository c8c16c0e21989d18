"""How figures look: colours that everybody can tell apart, a legend that covers nothing, units on every axis."""

from __future__ import annotations

from typing import Any

from levada.errors import LevadaError

#: Okabe and Ito's colours, which hold for the colour-blind; yellow is left out, for nobody sees it on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D46")
#: Beyond that many, and in print, lines differ by their strokes and marks as well.
STROKES = ("-", "--", "-.", ":")
MARKS = ("o", "s", "D", "v", "P", "X", "*", "h")

_SETTINGS: dict[str, Any] = {
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#D8D8D8",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    # A dollar in the name of a file or policy is a dollar.
    "text.parse_math": False,
    # The same figure has the same bytes.
    "svg.hashsalt": "levada",
    "figure.dpi": 100,
}


def matplotlib() -> Any:
    """matplotlib in our style; raises LevadaError where it is not installed."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise LevadaError("figures need matplotlib: pip install 'levada[plot]'") from None
    # Its own types know each setting by name.
    settings: Any = mpl.rcParams
    settings.update(_SETTINGS)
    return mpl


def line(place: int) -> dict[str, Any]:
    """Colour, stroke and mark of the curve in this place."""
    return {
        "color": COLOURS[place % len(COLOURS)],
        "linestyle": STROKES[place // len(COLOURS) % len(STROKES)],
        "marker": MARKS[place % len(MARKS)],
    }


def panels(count: int, *, height: float = 4.2) -> tuple[Any, list[Any]]:
    """A figure with so many panels side by side, which share the scale of their values."""
    matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(7.0, 4.6 * count), height), layout="constrained")
    axes = figure.subplots(1, count, sharey=True, squeeze=False)
    return figure, list(axes[0])


def legend(figure: Any, handles: list[Any]) -> None:
    """Names below the panels, where they hide nothing."""
    longest = max((len(str(handle.get_label())) for handle in handles), default=0)
    columns = max(1, min(len(handles), int(figure.get_figwidth() * 12 // (longest + 6))))
    # Constrained layout makes room for what stands outside; panels shall not shrink for it.
    figure.set_figheight(figure.get_figheight() + 0.2 * (-(-len(handles) // columns) - 1))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, handlelength=3)


def plain_decades(axis: Any) -> None:
    """Plain numbers at 1, 2 and 5 of each decade of a logarithmic axis, or at 1 alone where there are many."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 1e3 * low else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_locator(NullLocator())
