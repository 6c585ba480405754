"""The memory of a step with its phases, and the map of the book."""

from __future__ import annotations

import pytest

from pedagogy.costs.techniques import KINDS, TECHNIQUES
from pedagogy.plots import step_memory_figure, technique_map_figure

CURVE = [
    (0.0, {"parameters": 10e6, "activations": 0}),
    (0.1, {"parameters": 10e6, "activations": 30e6}),
    (0.7, {"parameters": 10e6, "activations": 5e6}),
    (0.8, {"parameters": 10e6, "activations": 0}),
]


def test_phases_end_at_their_readings_and_are_named_in_the_middle():
    ends = [("forward", 1), ("backward", 3)]
    ax = step_memory_figure(CURVE, ends, "It rises, then it falls.").axes[0]
    lines = [line.get_xdata()[0] for line in ax.lines if line.get_gid() == "phase end"]
    assert lines == [1, 3]
    names = {text.get_text(): text.xy[0] for text in ax.texts}
    assert names["forward"] == 0.5
    assert names["backward"] == 2.0
    assert names.keys() >= {"peak 40 MB"}


def test_the_heights_are_those_of_the_curve_and_the_x_axis_counts_readings():
    ax = step_memory_figure(CURVE, [], "It rises.").axes[0]
    (peak,) = [line for line in ax.lines if line.get_gid() == "peak"]
    assert peak.get_xydata().tolist() == [[1.0, 40e6]]
    assert ax.get_xlim() == (0, 3)


def test_a_phase_that_ends_before_it_starts_is_refused():
    with pytest.raises(ValueError, match="backward ends with reading 1, before 3"):
        step_memory_figure(CURVE, [("forward", 3), ("backward", 1)], "Never.")


def test_the_map_has_a_cell_for_each_effect_of_each_technique():
    ax = technique_map_figure("All of it.").axes[0]
    cells = [patch.get_gid() for patch in ax.patches]
    wanted = [
        f"{row.name}: {kind} {effect}"
        for row in TECHNIQUES
        for kind, effect in row.effects().items()
    ]
    assert sorted(cells) == sorted(wanted)
    assert len(cells) == len(TECHNIQUES) * len(KINDS)
    chapters = [text.get_text() for text in ax.texts if text.get_gid() == "chapter"]
    assert sorted(chapters) == sorted(row.chapter for row in TECHNIQUES)
