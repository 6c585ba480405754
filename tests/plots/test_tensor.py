"""Matrices cut over ranks, stacked terms, ring attention: artists say what the data say."""

from collections import Counter

import pytest

from pedagogy.plots.labels import labels_of
from pedagogy.plots.lanes import blocks
from pedagogy.plots.stacked import stacked_figure
from pedagogy.plots.tensor import (
    COLUMNS,
    PARTS,
    ROWS,
    WHOLE,
    Matrix,
    matrices_figure,
    ring_attention_figure,
    ring_events,
    weight_figure,
)


def sides(box):
    """Left, right, bottom and top of a box of four corners."""
    xs, ys = zip(*box, strict=True)
    return tuple(round(one, 6) for one in (min(xs), max(xs), min(ys), max(ys)))


def test_a_matrix_cut_by_columns_has_a_band_for_each_rank_from_left_to_right():
    bands = Matrix(1.0, 2.0, 0.8, 0.4, COLUMNS).bands(4)
    assert [sides(band) for band in bands] == [
        (1.0, 1.2, 2.0, 2.4),
        (1.2, 1.4, 2.0, 2.4),
        (1.4, 1.6, 2.0, 2.4),
        (1.6, 1.8, 2.0, 2.4),
    ]


def test_a_matrix_cut_by_rows_has_rank_0_at_the_top():
    bands = Matrix(1.0, 2.0, 0.8, 0.4, ROWS).bands(2)
    assert [sides(band) for band in bands] == [(1.0, 1.8, 2.2, 2.4), (1.0, 1.8, 2.0, 2.2)]


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("width", [0.34, 0.66, 0.98])
def test_parts_of_a_sum_are_sheets_of_one_size_within_the_matrix(ranks, width):
    sheets = [sides(band) for band in Matrix(0.0, 0.0, width, 0.95, PARTS).bands(ranks)]
    assert len(sheets) == ranks
    sizes = {(round(right - left, 6), round(top - low, 6)) for left, right, low, top in sheets}
    ((across, down),) = sizes
    assert across > 0.1
    assert down > 0.3
    assert sheets == sorted(sheets)  # each further to the right
    assert min(left for left, *_ in sheets) == 0
    assert max(right for _, right, *_ in sheets) <= width
    assert max(top for *_, top in sheets) == 0.95
    assert min(low for _, _, low, _ in sheets) >= 0


def test_each_piece_bears_the_number_of_its_rank_and_a_whole_one_says_all():
    matrices = [
        Matrix(0.2, 0.5, 1, 1, WHOLE, name="X"),
        Matrix(2.0, 0.5, 1, 1, ROWS, look="backward", notes=["each 2 x 4"]),
        Matrix(4.0, 0.5, 1, 1, PARTS, look="later"),
    ]
    ax = matrices_figure(matrices, 2, "Two are there.").axes[0]
    assert [text for text, _ in labels_of(ax, "forward ranks")] == ["all"]
    marks = dict(labels_of(ax, "backward ranks"))
    assert sorted(marks) == ["0", "1"]
    assert marks["0"][1] > marks["1"][1]
    assert [text for text, _ in labels_of(ax, "names")] == ["X"]
    assert [text for text, _ in labels_of(ax, "notes")] == ["each 2 x 4"]
    assert len(blocks(ax, "later")) == 1


def test_forward_is_light_and_backward_dark_for_the_same_rank():
    matrices = [
        Matrix(0, 0, 1, 1, COLUMNS),
        Matrix(2, 0, 1, 1, COLUMNS, look="backward"),
    ]
    ax = matrices_figure(matrices, 2, "Light and dark.").axes[0]
    colours = {
        c.get_gid(): c.get_facecolors()[0][:3] for c in ax.collections if "ward" in c.get_gid()
    }
    for rank in range(2):
        light, dark = colours[f"forward {rank}"], colours[f"backward {rank}"]
        assert min(light) > min(dark)
        assert sum(light) > sum(dark)


def test_a_weight_is_shown_whole_by_columns_and_by_rows_with_the_size_of_a_piece():
    ax = weight_figure((64, 256), 4, "One weight.").axes[0]
    assert [text for text, _ in labels_of(ax, "notes")] == [
        "each rank 64 x 256",
        "each rank 64 x 64",
        "each rank 16 x 256",
    ]


def test_stacked_terms_keep_their_order_and_their_look_in_every_bar():
    bars = {"TP": {"norms": 4e6, "scores": 6e6}, "full": {"input": 1e6}}
    figure = stacked_figure(bars, "Two bars.", limit=8e6)
    ax = figure.axes[0]
    spans = {term: blocks(ax, term) for term in ("norms", "scores", "input")}
    assert spans == {"norms": [(0, 0, 4e6)], "scores": [(0, 4e6, 10e6)], "input": [(1, 0, 1e6)]}
    assert [text for text, _ in labels_of(ax, "totals")] == ["10 MB", "1 MB"]
    assert [line.get_xdata()[0] for line in ax.lines if line.get_gid() == "limit"] == [8e6]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "norms",
        "scores",
        "input",
    ]


def computed(events):
    """Rank -> the ranks whose keys it meets, in order."""
    found = {}
    for event in sorted(events, key=lambda event: event.start):
        if event.kind == "F":
            found.setdefault(event.rank, []).append(int(event.name[1:]))
    return found


def test_in_a_ring_every_rank_meets_every_block_its_own_first():
    events = ring_events(4, causal=False)
    assert computed(events) == {
        0: [0, 3, 2, 1],
        1: [1, 0, 3, 2],
        2: [2, 1, 0, 3],
        3: [3, 2, 1, 0],
    }
    assert Counter(event.rank for event in events if event.kind == "send") == dict.fromkeys(
        range(4), 3
    )
    assert max(event.end for event in events) == 4


def test_a_causal_ring_skips_later_keys_and_is_no_faster():
    events = ring_events(4, causal=True)
    assert computed(events) == {0: [0], 1: [1, 0], 2: [2, 1, 0], 3: [3, 2, 1, 0]}
    assert max(event.end for event in events if event.kind == "F") == 4


@pytest.mark.parametrize("transfer", [0.5, 1.5])
def test_no_block_is_used_or_passed_on_before_it_has_arrived(transfer):
    events = ring_events(4, causal=False, transfer=transfer)
    for rank in range(4):
        steps = sorted(
            (e for e in events if e.kind == "F" and e.rank == rank), key=lambda e: e.start
        )
        sent = [e for e in events if e.kind == "send" and e.peers == (rank,)]
        for step, message in zip(steps[1:], sorted(sent, key=lambda e: e.end), strict=True):
            assert step.start >= message.end
    assert max(e.end for e in events) == pytest.approx(1 + 3 * max(1, transfer))


def test_both_rings_are_drawn_over_one_time_axis():
    figure = ring_attention_figure(4, "A causal ring computes 10 of 16 blocks.")
    upper, lower = figure.axes
    assert upper.get_xlim() == lower.get_xlim()
    assert len(blocks(upper, "forward")) == 16
    assert len(blocks(lower, "forward")) == 10
