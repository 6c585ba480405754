"""A routed passage: what is drawn is what the gate chose, and what found no room."""

import numpy as np
import pytest
import torch

from pedagogy.moe import (
    gshard_gate,
    switch_gate,
    top_k,
)
from pedagogy.plots.labels import labels_of
from pedagogy.plots.lanes import blocks
from pedagogy.plots.moe import expert_colour, routing_figure

TEXT = "ab 1"
LOGITS = torch.tensor([[2.0, 1, 0], [3, 1, 0], [2, 0, 1], [0, 0, 1]])  # experts 0, 0, 0, 2


def drawn(ax, prefix):
    """What is drawn of each gid that begins so: gid -> number of boxes."""
    gids = [c.get_gid() for c in ax.collections if (c.get_gid() or "").startswith(prefix)]
    return {gid: len(blocks(ax, gid)) for gid in gids}


def lines(ax, gid):
    return [line for line in ax.lines if line.get_gid() == gid]


def texts(ax, gid):
    return [text for text, _ in labels_of(ax, gid)]


# A routed passage


def test_every_character_is_written_in_order_above_its_choices():
    ax = routing_figure(list(TEXT), top_k(LOGITS, 2), None).axes[0]
    characters = labels_of(ax, "characters")
    assert [text for text, _ in characters] == ["a", "b", "\u2423", "1"]
    xs = [x for _, (x, _) in characters]
    assert xs == sorted(xs)
    above = {}
    for text, (x, y) in labels_of(ax, "experts"):
        above.setdefault(x, []).append((-y, text))
    chosen = [[text for _, text in sorted(above[x])] for x in xs]
    assert chosen == [["0", "1"], ["0", "1"], ["0", "2"], ["2", "0"]]


def test_a_choice_that_found_no_room_is_hatched_and_its_character_grey():
    ax = routing_figure(list(TEXT), top_k(LOGITS, 1, capacity=2), 2).axes[0]
    assert drawn(ax, "expert ") == {"expert 0": 2, "expert 2": 1}
    assert drawn(ax, "dropped by") == {"dropped by 0": 1}
    hatches = {c.get_gid(): c.get_hatch() for c in ax.collections if "exp" in c.get_gid()}
    assert hatches == {"expert 0": None, "expert 2": None}
    (dropped,) = [c for c in ax.collections if c.get_gid() == "dropped by 0"]
    assert dropped.get_hatch() == "////"
    assert (texts(ax, "characters"), texts(ax, "lost")) == (["a", "b", "1"], ["\u2423"])
    assert labels_of(ax, "lost")[0][1][0] == labels_of(ax, "experts")[2][1][0]
    lost, found = ([a for a in ax.artists if a.get_gid() == gid] for gid in ("lost", "characters"))
    assert lost[0].colour != found[0].colour


def test_a_character_is_not_grey_while_one_of_its_choices_is_kept():
    routing = top_k(LOGITS, 2, capacity=3)  # expert 0 is wanted 4 times
    assert routing.num_dropped == 1
    ax = routing_figure(list(TEXT), routing, 3).axes[0]
    assert sum(drawn(ax, "dropped by").values()) == 1
    assert texts(ax, "lost") == []


def test_the_bars_are_the_choices_of_each_expert_kept_and_dropped():
    figure = routing_figure(list(TEXT), top_k(LOGITS, 1, capacity=2), 2)
    ax = figure.axes[1]
    assert [end for expert in range(3) for _, _, end in blocks(ax, f"kept {expert}")] == [2, 0, 1]
    assert blocks(ax, "lost 0") == [(0, 2, 3)]
    assert not blocks(ax, "lost 2")
    assert [text for text, _ in labels_of(ax, "counts")] == ["3, 1 dropped", "0", "1"]
    assert [line.get_xdata()[0] for line in lines(ax, "capacity")] == [2]
    assert [line.get_xdata()[0] for line in lines(ax, "even")] == [pytest.approx(4 / 3)]
    assert figure.get_label() == (
        "1 of 4 choices are dropped (25%) with room for 2 in each expert; the fullest of 3 experts "
        "is 0, with 3: 2.2 times its share."
    )


def test_without_a_capacity_no_line_is_drawn_and_nothing_is_hatched_or_grey():
    figure = routing_figure(list(TEXT), top_k(LOGITS, 1), None)
    assert not lines(figure.axes[1], "capacity")
    assert not drawn(figure.axes[0], "dropped by")
    assert not texts(figure.axes[0], "lost")
    assert "(0%) without a limit" in figure.get_label()


def test_the_greys_are_the_gates_probabilities_line_by_line():
    logits = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    routing = switch_gate(logits, 1.0)
    images = routing_figure(["x"] * 60, routing, 15).axes[0].images
    assert [image.get_array().shape for image in images] == [(4, 48), (4, 12)]
    joined = np.hstack([image.get_array() for image in images])
    assert np.allclose(joined, logits.softmax(-1).T)


def test_a_second_choice_that_chance_left_out_is_not_a_kept_one():
    logits = torch.randn(48, 8, generator=torch.Generator().manual_seed(0))
    routing = gshard_gate(logits, 6, torch.Generator().manual_seed(0))
    figure = routing_figure(["x"] * 48, routing, 6)
    assert sum(drawn(figure.axes[0], "expert ").values()) == int(routing.kept.sum())
    assert sum(drawn(figure.axes[0], "dropped by").values()) == routing.num_dropped > 0
    ends = [blocks(figure.axes[1], f"kept {expert}")[0][2] for expert in range(8)]
    assert ends == [int((routing.experts[routing.kept] == expert).sum()) for expert in range(8)]


def test_a_routing_with_a_gradient_is_drawn_and_keeps_it():
    logits = LOGITS.clone().requires_grad_()
    routing = switch_gate(logits, 1.0)
    routing_figure(list(TEXT), routing, 2)
    routing.weights.sum().backward()
    assert logits.grad is not None


def test_a_passage_needs_a_choice_for_each_of_its_characters():
    with pytest.raises(ValueError, match="5 tokens, and a routing of 4"):
        routing_figure(list("ab 12"), top_k(LOGITS, 1), None)
    with pytest.raises(ValueError, match="0 tokens"):
        routing_figure([], top_k(LOGITS[:0], 1), None)


def test_eight_experts_have_eight_colours():
    assert len({expert_colour(expert) for expert in range(8)}) == 8
