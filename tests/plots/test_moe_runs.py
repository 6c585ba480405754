"""Runs of a mixture and exchanges between nodes: artists say what the data say."""

import pytest
import torch

from pedagogy.moe import joint_counts, mutual_information, token_classes
from pedagogy.moe.specialisation import CLASSES
from pedagogy.plots.labels import labels_of
from pedagogy.plots.moe_exchange import exchange_figure
from pedagogy.plots.moe_runs import (
    drops_figure,
    equal_compute_figure,
    load_figure,
    running_shares,
    specialisation_figure,
)


def lines(ax, gid):
    return [line for line in ax.lines if line.get_gid() == gid]


# Runs


def test_running_shares_are_those_of_the_last_steps():
    loads = torch.tensor([[4, 0], [0, 4], [2, 2], [0, 4]])
    assert running_shares(loads, 2).tolist() == [[1, 0], [0.5, 0.5], [0.25, 0.75], [0.25, 0.75]]
    assert running_shares(loads, 9)[-1].tolist() == [6 / 16, 10 / 16]


def test_loads_are_stacked_to_one_and_the_finding_says_how_full_the_fullest_is():
    runs = {"without": torch.tensor([[5, 5, 10]] * 3), "with": torch.tensor([[8, 6, 6]] * 3)}
    figure = load_figure(runs, window=2)
    assert figure.get_label() == (
        "At the end, the fullest expert gets its even share 1.5 times without, 1.2 times with."
    )
    for ax, loads in zip(figure.axes, runs.values(), strict=True):
        bands = {c.get_gid(): c.get_paths()[0].vertices for c in ax.collections}
        for expert, top in enumerate((loads[-1] / 20).cumsum(0).tolist()):
            assert bands[f"expert {expert}"][:, 1].max() == pytest.approx(top)
        assert [line.get_ydata()[0] for line in lines(ax, "even")] == pytest.approx([1 / 3, 2 / 3])
    with pytest.raises(ValueError, match="at least 1"):
        load_figure({})


def test_drops_are_drawn_in_percent_and_the_finding_says_from_where_on_there_are_none():
    factors = [0.5, 1.0, 2.0]
    figure = drops_figure(factors, {"even": [0.5, 0.0, 0.0], "full": [0.9, 0.8, 0.25]})
    (line,) = lines(figure.axes[0], "even")
    assert line.get_xdata().tolist() == factors
    assert line.get_ydata().tolist() == [50, 0, 0]
    assert figure.get_label() == (
        "What a capacity factor drops. even: 50% at a factor of 0.5, none from 1 on; full: 90% at "
        "a factor of 0.5, 25% even at 2."
    )


@pytest.mark.parametrize(
    ("mixed", "verdict"),
    [([1.5, 1.4, 1.45], "8 experts is below all other seeds"), ([1.8, 1.4, 1.5], "overlap")],
)
def test_a_difference_is_claimed_only_where_the_seeds_are_apart(mixed, verdict):
    runs = {
        "dense": torch.tensor([[3.0, 1.7], [3.1, 1.6], [3.2, 1.9]]),
        "8 experts": torch.tensor([[3.0, one] for one in mixed]),
    }
    figure = equal_compute_figure(runs, [100, 200])
    assert verdict in figure.get_label()
    assert "200 steps, median and range of 3 seeds: dense 1.70 (1.60 to 1.90)" in figure.get_label()
    (dense,) = lines(figure.axes[0], "dense")
    assert dense.get_ydata().tolist() == pytest.approx([3.1, 1.7])


def test_the_table_shows_each_experts_tokens_by_class_and_all_of_them_last():
    counts = torch.tensor([[6, 0, 0], [0, 0, 2], [0, 0, 2], [2, 0, 0]])
    figure = specialisation_figure(counts, CLASSES, 1.25, [0.1, 0.2])
    shown = {at: text for text, at in labels_of(figure.axes[0], "shares")}
    columns = {c: [shown.get((c, row)) for row in range(4)] for c in range(4)}
    assert columns[0] == ["75%", "0%", "0%", "25%"]
    assert columns[1] == [None] * 4  # no token, no share
    assert columns[2] == ["0%", "50%", "50%", "0%"]
    assert columns[3] == ["50%", "17%", "17%", "17%"]
    ticks = [tick.get_text() for tick in figure.axes[0].get_xticklabels()]
    assert ticks == ["0\n8", "1\n0", "2\n4", "all\n12"]
    (trained,) = lines(figure.axes[1], "trained")
    assert trained.get_xdata()[0] == 1.25
    assert not lines(figure.axes[1], "untrained")


def test_the_gate_before_training_and_what_there_is_to_tell_are_shown_as_well():
    counts = torch.tensor([[4, 0, 0], [2, 0, 0], [0, 1, 0], [0, 0, 1]])  # 1/2, 1/4, 1/8, 1/8
    figure = specialisation_figure(counts, CLASSES, 1.25, [0.1, 0.2], untrained=0.5)
    (untrained,) = lines(figure.axes[1], "untrained")
    assert untrained.get_xdata()[0] == 0.5
    assert figure.axes[1].get_xlabel().endswith("of 1.75")
    assert "tells 1.250 of 1.750 bits of a token's class; untrained it told 0.500;" in (
        figure.get_label()
    )


def test_the_finding_counts_the_shuffles_that_tell_as_much():
    classes = token_classes(torch.tensor(list(b"abc 12, de 3; f" * 20)))
    counts, shuffled = joint_counts(classes, classes, 4), [0.1, 0.2, 0.3]
    for information, as_much in ((mutual_information(counts), 0), (0.2, 2), (0.0, 3)):
        label = specialisation_figure(counts, CLASSES, information, shuffled).get_label()
        assert f"{as_much} of 3 shuffles tell as much (the most: 0.300)" in label


# The exchange


def arrows(ax, gid):
    return [patch for patch in ax.patches if patch.get_gid() == gid]


@pytest.mark.parametrize(("nodes", "per_node"), [(2, 2), (3, 2), (2, 4), (4, 4)])
def test_each_pair_that_exchanges_has_a_line(nodes, per_node):
    ax = exchange_figure(nodes, per_node).axes[0]
    inside = nodes * per_node * (per_node - 1) // 2
    across = nodes * (nodes - 1) // 2  # pairs of nodes
    counts = [
        [len(arrows(ax, f"{where} {p}")) for where in ("inside", "between")] for p in range(3)
    ]
    assert counts == [[inside, across * per_node**2], [inside, 0], [0, across * per_node]]


def test_a_message_of_several_pieces_is_a_thicker_line():
    ax = exchange_figure(2, 2).axes[0]
    widths = [arrows(ax, gid)[0].get_linewidth() for gid in ("between 0", "inside 1", "between 2")]
    assert widths[1] == widths[2] == 2 * widths[0]


def test_each_step_says_what_rank_0_sends_in_it():
    """4 ranks with 1,000 bytes for each."""
    told = [labels_of(exchange_figure(2, 2, 4000).axes[0], f"told {panel}") for panel in range(3)]
    assert [[text for text, _ in lines] for lines in told] == [
        ["rank 0, inside: 1 x 1 kB = 1 kB", "rank 0, between nodes: 2 x 1 kB = 2 kB"],
        ["rank 0, inside: 1 x 2 kB = 2 kB"],
        ["rank 0, between nodes: 1 x 2 kB = 2 kB"],
    ]


def test_an_exchange_within_one_node_or_among_too_many_ranks_is_not_drawn():
    for nodes, per_node in ((1, 4), (4, 1), (5, 4)):
        with pytest.raises(ValueError, match=f"{nodes} nodes of {per_node} ranks"):
            exchange_figure(nodes, per_node)
