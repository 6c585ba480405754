"""Explorers of chapter 02a: a pipeline's schedule, and a schedule of one's own beside it."""

from __future__ import annotations

import re
import textwrap

import ipywidgets
from matplotlib.figure import Figure

from pedagogy.pipeline import Schedule, Simulation, simulate
from pedagogy.pipeline.notation import parse_schedule
from pedagogy.plots import style
from pedagogy.plots.pipeline import (
    CHUNKS_IN_FLIGHT,
    FORWARD_IS_1,
    IN_FLIGHT,
    hide_after,
    mark_wait,
    schedule_panel,
)
from pedagogy.plots.timeline import Rows, timeline_figure
from pedagogy.widgets.controls import LABEL, menu
from pedagogy.widgets.coupled import CoupledExplorer
from pedagogy.widgets.explorer import Explorer, Try
from pedagogy.widgets.pipeline_plans import (
    BOUNDS,
    INTERLEAVED,
    MAX_MICROBATCHES,
    RECOMPUTING,
    SCHEDULES,
    Setting,
    bubbles,
    last_step,
    moments,
    panel,
    simulated,
)

REFERENCES = ("naive", "GPipe", "1F1B", "Zero bubble H1", "Zero bubble H2")
FORWARD_FIRST = "\n".join(["F0 F1 F2 F3 B0 B1 B2 B3"] * 3)
TIME = "time (1 = forward of an eighth of the batch on one rank)"
HEIGHT, OWN_HEIGHT = 6.0, 5.2


def render_pipeline(
    schedule: str,
    ranks: int,
    microbatches: int,
    chunks: int,
    backward: float,
    fixed_time: float,
    message_time: float,
    bubble: int = 0,
    step: int = 0,
) -> Figure:
    """Draw a schedule with its memory; outline a bubble; hide what comes after a step.

    bubble: which one, counted from 1 by rank and time; 0 for none. step: 0 shows the whole.
    """
    setting = Setting(schedule, ranks, microbatches, chunks, backward, fixed_time, message_time)
    simulation, found = simulated(setting), bubbles(setting) if bubble else []
    chosen = found[:bubble][-1] if found else None
    sentences = [_summary(setting, simulation)]
    if chosen:
        sentences.append(
            f"Bubble {found.index(chosen) + 1} of {len(found)}: rank {chosen.rank} is idle from "
            f"{chosen.start:.4g} to {chosen.end:.4g}. {chosen.reason}"
        )
    figure = timeline_figure(
        panel(setting),
        " ".join(sentences),
        time_label=TIME,
        memory_label=_memory_label(setting),
        end=simulation.makespan * 1.002,
        height=HEIGHT,
        rows=Rows(min(0.58, 2.72 / ranks), min(0.38, 1.6 / ranks)),
    )
    if chosen:
        action = chosen.for_action
        span = (simulation.start[action], simulation.end[action])
        rank = simulation.layout.rank_of(action.stage, action.microbatch)
        mark_wait(figure.axes[0], chosen, span, rank)
    if step:
        hide_after(figure, moments(setting)[step - 1], ranks)
    return figure


def _memory_label(setting: Setting) -> str:
    if setting.schedule == RECOMPUTING:
        return "inputs kept (all activations: of one micro-batch alone, from its R to its B)"
    return CHUNKS_IN_FLIGHT if setting.chunks_held > 1 else IN_FLIGHT


def _summary(setting: Setting, simulation: Simulation) -> str:
    peaks = ", ".join(map(str, simulation.peak_in_flight))
    what = "micro-batch chunks" if setting.chunks_held > 1 else "micro-batches"
    kept = f"{what} in flight" if setting.schedule != RECOMPUTING else "inputs kept"
    work, m = sum(simulation.busy) / setting.ranks, setting.microbatches
    return (
        f"{m} micro-batch{'es' * (m > 1)} of 1/{m} of the batch: makespan "
        f"{simulation.makespan:.4g} for {work:.4g} of work on each rank; "
        f"bubble_fraction {simulation.bubble_fraction:.3f} of the total, bubble_ratio "
        f"{simulation.bubble_ratio:.3f} to the work; at most {peaks} {kept}, by rank."
    )


def pipeline_explorer() -> CoupledExplorer:
    """Return the explorer of schedules: bubble, memory, steps, and why a rank waits."""
    plain = {"backward": 2.0, "fixed_time": 0.0, "message_time": 0.0, "bubble": 0, "step": 0}
    small = {**plain, "ranks": 4, "microbatches": 8}
    return CoupledExplorer(
        render_pipeline,
        bounds=BOUNDS,
        play="step",
        last=last_step,
        schedule=menu(list(SCHEDULES), "1F1B"),
        ranks=(1, 8, 4),
        microbatches=(1, 32, 8),
        chunks=(1, 4, 2),
        backward=(1.0, 3.0, 2.0, 0.5),
        fixed_time=(0.0, 1.0, 0.0, 0.05),
        message_time=(0.0, 1.0, 0.0, 0.05),
        bubble=(0, 1, 0),
        step=(0, 100, 0),
        try_this=(
            Try(
                "one bubble, two memories",
                "1F1B has GPipe's bubble, 0.273 of the total, with 4, 3, 2, 1 micro-batches in "
                "flight instead of 8 on each rank",
                {**small, "schedule": "1F1B"},
            ),
            Try(
                "two chunks a rank",
                "the bubble falls from 0.273 of the total to 0.158; 11 chunks, half a rank each, "
                "are in flight on rank 0",
                {**small, "schedule": INTERLEAVED, "chunks": 2},
            ),
            Try(
                "cut too finely",
                "each piece has a fixed time of 0.25: read bubble_fraction and makespan, then move "
                "microbatches to 8 and read again, for both change",
                {**small, "schedule": "GPipe", "microbatches": 32, "fixed_time": 0.25},
            ),
        ),
    )


def render_own_schedule(text: str, reference: str, backward: float) -> Figure:
    """Draw a reference over the schedule that a text describes, or over why that cannot run.

    The reference gets as many ranks and micro-batches as the text has, up to 8 and 32.
    """
    ranks, microbatches = _sizes(text)
    theirs = _timed(SCHEDULES[reference](ranks, microbatches, 1), backward)
    panels = [schedule_panel(theirs, f"{reference}, for comparison", memory=False)]
    options = {"time_label": FORWARD_IS_1, "height": OWN_HEIGHT}
    options["rows"] = Rows(lane=min(0.44, 1.76 / ranks))
    try:
        yours = _timed(_read(text), backward)
    except ValueError as error:
        reason = f"Yours cannot run: {error}."
        figure = timeline_figure(
            panels, textwrap.shorten(reason, 400, placeholder=" ... ."), **options
        )
        _write_reason(figure, reason)
        return figure
    panels.append(schedule_panel(yours, "Yours", memory=False))
    finding = (
        f"Yours takes {yours.makespan:.4g}, {reference} {theirs.makespan:.4g}; bubble_fraction "
        f"{yours.bubble_fraction:.3f} against {theirs.bubble_fraction:.3f} of the total; at most "
        f"{_list(yours.peak_in_flight)} in flight against {_list(theirs.peak_in_flight)}, by rank."
    )
    return timeline_figure(panels, finding, **options)


def _timed(schedule: Schedule, backward: float) -> Simulation:
    return simulate(schedule, backward=backward, weight=backward / 2)


def _read(text: str) -> Schedule:
    schedule = parse_schedule(text)
    actions = [action for actions in schedule for action in actions]
    highest = max(max(action.stage, action.microbatch) for action in actions)
    if len(schedule) > 8 or highest >= MAX_MICROBATCHES:
        raise ValueError(
            f"{len(schedule)} ranks, stages and micro-batches up to {highest}: the picture has "
            f"room for 8 ranks, and numbers below {MAX_MICROBATCHES}"
        )
    return schedule


def _sizes(text: str) -> tuple[int, int]:
    """Return the ranks and micro-batches of a text, even of one that is no schedule."""
    lines = [line for line in text.splitlines() if line.strip()]
    numbers = [int(number) for number in re.findall(r"[FBWRU](\d{1,6})", text.upper())]
    return min(max(len(lines), 1), 8), min(max(numbers, default=3) + 1, MAX_MICROBATCHES)


def _list(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


def _write_reason(figure: Figure, reason: str) -> None:
    """Write it below the panel, in whole lines."""
    below = figure.axes[0].get_position().y0 - 0.75 / OWN_HEIGHT
    text = "\n".join(textwrap.wrap(reason, 110))
    with style.styled():
        look = {"color": style.ACCENT, "va": "top", "linespacing": 1.5, "gid": "reason"}
        figure.text(0.075, below, text, fontsize=10.5, **look)


def own_schedule_explorer() -> Explorer:
    """Return the explorer in which one writes a schedule: a line for each rank."""
    look = {"style": {"description_width": LABEL}, "layout": {"width": "64em", "max_width": "100%"}}
    area = ipywidgets.Textarea(value=FORWARD_FIRST, rows=5, description="your schedule", **look)
    return Explorer(
        render_own_schedule,
        text=area,
        reference=menu(REFERENCES, "1F1B"),
        backward=(1.0, 3.0, 2.0, 0.5),
        try_this=(
            Try(
                "a dead-lock",
                "rank 0 waits for the gradient of 0, and rank 1, which would send it, for the "
                "activation of 1",
                {"text": "F0 B0 F1 B1\nF1 F0 B1 B0", "reference": "1F1B"},
            ),
            Try(
                "less in flight",
                "rank 0 admits 2 micro-batches instead of 3: the step takes 24 instead of 18",
                {
                    "text": "F0 F1 B0 F2 B1 F3 B2 B3\nF0 F1 B0 F2 B1 F3 B2 B3\n"
                    "F0 B0 F1 B1 F2 B2 F3 B3",
                    "reference": "1F1B",
                },
            ),
            Try(
                "fill the drain",
                "each backward in halves, the weights' half where the rank would wait: 14 instead "
                "of 18",
                {
                    "text": "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3\n"
                    "F0 F1 B0 F2 B1 W0 F3 B2 W1 B3 W2 W3\n"
                    "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3",
                    "reference": "1F1B",
                },
            ),
        ),
    )
