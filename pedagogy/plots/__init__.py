"""Pictures: data in, a matplotlib Figure out. Nothing here starts a rank or knows a technique.

Every `*_figure(...)` returns a `StyledFigure` whose label states its finding (the argument
`finding`, one sentence); every `draw_*(ax, ...)` draws on axes that the caller made.
"""

from pedagogy.plots import style
from pedagogy.plots.bars import bars_figure, draw_bars
from pedagogy.plots.curves import curves_figure, draw_curves, draw_histograms, histograms_figure
from pedagogy.plots.lanes import draw_lanes
from pedagogy.plots.memory import (
    draw_memory_bars,
    draw_memory_curve,
    draw_memory_rows,
    memory_bars_figure,
    memory_figure,
)
from pedagogy.plots.partition import CutStage, partition_figure
from pedagogy.plots.pipeline import schedule_figure, schedule_panel, versions_figure
from pedagogy.plots.seeds import seeds_figure
from pedagogy.plots.shards import ShardMap, draw_shard_map, shards_figure
from pedagogy.plots.step import draw_phases, step_memory_figure
from pedagogy.plots.strips import draw_memory_strips
from pedagogy.plots.technique_map import technique_map_figure
from pedagogy.plots.timeline import Panel, timeline_figure

__all__ = [
    "CutStage",
    "Panel",
    "ShardMap",
    "bars_figure",
    "curves_figure",
    "draw_bars",
    "draw_curves",
    "draw_histograms",
    "draw_lanes",
    "draw_memory_bars",
    "draw_memory_curve",
    "draw_memory_rows",
    "draw_memory_strips",
    "draw_phases",
    "draw_shard_map",
    "histograms_figure",
    "memory_bars_figure",
    "memory_figure",
    "partition_figure",
    "schedule_figure",
    "schedule_panel",
    "seeds_figure",
    "shards_figure",
    "step_memory_figure",
    "style",
    "technique_map_figure",
    "timeline_figure",
    "versions_figure",
]
