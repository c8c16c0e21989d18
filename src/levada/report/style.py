"""The style of figures: accessible colours, legends below, units on every axis."""

from __future__ import annotations

from typing import Any

from levada.errors import MissingExtra

#: The colours of Okabe and Ito for colour-blind readers, without yellow, which is invisible on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D46")
#: With more lines than colours, and in print, lines also differ by stroke and marker.
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
    # A dollar sign in a file or policy name is not math.
    "text.parse_math": False,
    # Equal figures give equal bytes.
    "svg.hashsalt": "levada",
    "figure.dpi": 100,
}


def matplotlib() -> Any:
    """matplotlib with this style; raises MissingExtra if it is not installed."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise MissingExtra("a figure", "plot") from None
    # matplotlib's type stubs list each setting by name.
    settings: Any = mpl.rcParams
    settings.update(_SETTINGS)
    return mpl


def line(place: int) -> dict[str, Any]:
    """Colour, line style and marker of the curve with this index."""
    return {
        "color": COLOURS[place % len(COLOURS)],
        "linestyle": STROKES[place // len(COLOURS) % len(STROKES)],
        "marker": MARKS[place % len(MARKS)],
    }


def panels(count: int, *, height: float = 4.2) -> tuple[Any, list[Any]]:
    """A figure with *count* panels side by side and a common value axis."""
    matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(7.0, 4.6 * count), height), layout="constrained")
    axes = figure.subplots(1, count, sharey=True, squeeze=False)
    return figure, list(axes[0])


def legend(figure: Any, handles: list[Any]) -> None:
    """Put the legend below the panels."""
    longest = max((len(str(handle.get_label())) for handle in handles), default=0)
    columns = max(1, min(len(handles), int(figure.get_figwidth() * 12 // (longest + 6))))
    # Constrained layout takes the space of the legend from the panels; enlarge the figure instead.
    figure.set_figheight(figure.get_figheight() + 0.2 * (-(-len(handles) // columns) - 1))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, handlelength=3)


def plain_decades(axis: Any) -> None:
    """Label 1, 2 and 5 of each decade of a log axis, or only 1 if there are many."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 1e3 * low else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_locator(NullLocator())
