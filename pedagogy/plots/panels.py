"""Several small plots of the same curves, so that only what differs between them meets the eye.

All panels have one y axis, and the panels of a column, where that is wanted, one x axis. A curve
has the same look in every panel; one legend above names it for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pedagogy.plots import style
from pedagogy.plots.curves import draw_curves

LEFT, RIGHT, TOP, BOTTOM, GAP_X, GAP_Y = 0.75, 0.2, 0.62, 0.55, 0.3, 0.85


class CurvePanel(NamedTuple):
    """One small plot: name of the curve -> (x, y), y a list, or a list of lists for several seeds.

    mark: an x at which a dashed line stands, or None.
    """

    title: str
    curves: Mapping[str, tuple[Sequence[float], Any]]
    x_label: str = ""
    mark: float | None = None


def curve_panels_figure(
    rows: Sequence[Sequence[CurvePanel]],
    finding: str,
    *,
    y_label: str = "",
    panel_height: float = 2.0,
    y_limits: tuple[float, float] | None = None,
    markers: bool = False,
) -> Figure:
    """Return rows of panels over one y axis, with one legend for all.

    Raises: ValueError if a panel does not hold the same curves as the first one.
    """
    names = list(rows[0][0].curves)
    for panel in (panel for row in rows for panel in row):
        if list(panel.curves) != names:
            raise ValueError(
                f"panel {panel.title!r} holds {list(panel.curves)}, and the first one {names}"
            )
    height = TOP + BOTTOM + len(rows) * panel_height + (len(rows) - 1) * GAP_Y
    figure = style.new_figure(style.WIDTH, height)
    first: Axes | None = None
    with style.styled():
        for i, row in enumerate(rows):
            width = (style.WIDTH - LEFT - RIGHT - GAP_X * (len(row) - 1)) / len(row)
            bottom = BOTTOM + (len(rows) - 1 - i) * (panel_height + GAP_Y)
            for j, panel in enumerate(row):
                place = (LEFT + j * (width + GAP_X), bottom, width, panel_height)
                ax = style.add_axes(figure, *place, **({"sharey": first} if first else {}))
                first = first or ax
                _draw_panel(ax, panel, y_label if j == 0 else None, markers)
        if y_limits:
            first.set_ylim(*y_limits)
        handles, texts = first.get_legend_handles_labels()
        place = (LEFT / style.WIDTH, 1 - 0.06 / height)
        figure.legend(
            handles, texts, loc="upper left", bbox_to_anchor=place, ncol=4, handlelength=3,
            borderaxespad=0, borderpad=0,
        )  # fmt: skip
    return style.finding(figure, finding)


def _draw_panel(ax: Axes, panel: CurvePanel, y_label: str | None, markers: bool) -> None:
    draw_curves(ax, panel.curves, markers=markers)
    if panel.mark is not None:
        ax.axvline(panel.mark, color=style.ACCENT, linewidth=1.2, linestyle=(0, (4, 2)), gid="mark")
    ax.set_title(panel.title, fontsize=10)
    ax.set_xlabel(panel.x_label)
    if y_label is None:
        ax.tick_params(labelleft=False)
    else:
        ax.set_ylabel(y_label)
