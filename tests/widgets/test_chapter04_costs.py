"""What experts cost, and exchanges flat against two levels: the explorers say what is true."""

import pytest

from pedagogy.costs.moe import flops_per_token, moe_parameters
from pedagogy.costs.moe_messages import Link
from pedagogy.moe import dense_gpt, mixture_gpt, moe_layers
from pedagogy.plots.lanes import blocks
from pedagogy.widgets.chapter04_costs import (
    PRESETS,
    experts_cost_explorer,
    experts_costs,
    render_experts_cost,
    short,
)
from pedagogy.widgets.chapter04_exchange import (
    DEFAULT,
    exchange_bars,
    exchange_explorer,
    render_exchange,
)

SMALL = PRESETS["our small GPT"]
costs = pytest.mark.parametrize("explorer", [experts_cost_explorer], indirect=True)
exchanges = pytest.mark.parametrize("explorer", [exchange_explorer], indirect=True)


def chosen(explorer, label):
    (values,) = [trial.values for trial in explorer.try_this if trial.label == label]
    return explorer.set(**values)


def total(bars, quantity, way):
    return sum(bars[quantity][way].values())


# Parameters against FLOPs


def test_the_costs_of_the_small_gpt_are_those_of_the_modules():
    found = experts_costs(**PRESETS["our small GPT"])
    model = mixture_gpt(8)
    experts = next(moe_layers(model)).experts
    one = sum(parameter.numel() for parameter in experts[0].parameters())
    whole = sum(parameter.numel() for parameter in model.parameters())
    assert found["all experts"].parameters == whole
    assert found["dense"].parameters == sum(p.numel() for p in dense_gpt().parameters())
    assert found["on one rank"].parameters == whole - 6 * one  # 2 of 8 on each of 4 ranks
    assert found["used by a token"].parameters == whole - 7 * one


def test_a_token_uses_k_experts_of_each_mixture_and_a_rank_holds_its_part():
    shape = {"layers": 4, "hidden": 64, "experts": 16, "every": 1}
    one = 8 * 64**2 + 5 * 64
    found = experts_costs(**shape, k=2, ranks=16)
    assert found["used by a token"].parameters - found["on one rank"].parameters == 4 * one
    whole = experts_costs(**shape, k=1, ranks=1)
    assert whole["on one rank"] == whole["all experts"]
    with pytest.raises(ValueError, match="16 experts on 3 ranks"):
        experts_costs(**shape, k=1, ranks=3)


@costs
def test_the_four_points_stand_where_their_costs_are(explorer):
    ax = explorer.figure.axes[0]
    for name, cost in experts_costs(**PRESETS["our small GPT"]).items():
        (line,) = [line for line in ax.lines if line.get_gid() == name]
        assert (line.get_xdata()[0], line.get_ydata()[0]) == (cost.flops, cost.parameters)
    (way,) = [line for line in ax.lines if line.get_gid() == "more experts"]
    counts = [moe_parameters(2, 32, n, sequence=32) for n in (1, 2, 4, 8)]
    assert way.get_ydata().tolist() == counts
    flops = [flops_per_token(2, 32, 32, num_experts=n) for n in (1, 2, 4, 8)]
    assert way.get_xdata().tolist() == flops


@costs
def test_a_shape_moves_all_controls_and_a_control_moved_by_hand_is_ones_own(explorer):
    assert explorer.values["preset"] == "our small GPT"
    explorer.controls["preset"].value = "shape of Switch-C"
    assert explorer.values["experts"] == 2048
    explorer.controls["experts"].value = 1024
    assert explorer.values["preset"] == "own"


@costs
def test_ranks_beyond_the_experts_hold_none(explorer):
    explorer.set(experts=8, ranks=32)
    assert explorer.readout.endswith("Of 32 ranks 24 would hold no expert.")
    explorer.set(ranks=8)
    assert explorer.readout.endswith("each of 8 ranks holds 34.9 k.")


@costs
def test_try_64_experts_adds_the_flops_of_a_router(explorer):
    before = experts_costs(**PRESETS["our small GPT"])["all experts"]
    chosen(explorer, "64 experts")
    after = experts_costs(**{**PRESETS["our small GPT"], "experts": 64})["all experts"]
    assert after.flops - before.flops == 3 * 2 * 32 * (64 - 8)
    assert after.flops / before.flops == pytest.approx(1.05, abs=0.005)


@costs
def test_try_a_rank_of_switch_c_s_shape_with_256_experts_takes_a_terabyte(explorer):
    readout = chosen(explorer, "on 8 ranks").readout
    assert "each of 8 ranks holds 267 B" in readout
    assert 4 * 30 * 256 * 8 * 2080**2 > 1e12
    assert 196e9 < 1571e9 / 8 < 197e9  # Switch's table 9 has 1571 B in all


@costs
def test_the_share_that_a_token_uses_is_said_in_two_digits(explorer):
    assert "a token uses 37% of them" in explorer.readout  # 34,944 of 93,408
    assert "a token uses 0.079% of them" in chosen(explorer, "on 8 ranks").readout
    assert "a token uses 100% of them" in explorer.set(**{**SMALL, "experts": 2, "k": 2}).readout


@costs
def test_try_gshard_s_shape_gives_each_of_2048_ranks_one_expert_of_each_layer(explorer):
    chosen(explorer, "GShard's shape")
    found = experts_costs(**PRESETS["shape of GShard 2048E 36L"])
    more = found["used by a token"].parameters - found["on one rank"].parameters
    assert more == 18 * (8 * 1024**2 + 5 * 1024)  # the second of the two that a token uses


@pytest.mark.parametrize(
    ("value", "text"),
    [(999, "999"), (35_700, "35.7 k"), (999_600, "1 M"), (310e9, "310 B"), (2.13e12, "2.13 T")],
)
def test_numbers_are_short(value, text):
    assert short(value) == text


def test_a_picture_of_ones_own_model_says_so():
    figure = render_experts_cost(3, 64, 4, 2, 2, 4)
    (title,) = [text.get_text() for text in figure.texts if text.get_gid() == "title"]
    assert title == "Our GPT: 3 layers of 64, 4 experts in each 2nd layer"


# Flat against two levels


def test_two_levels_send_the_same_bytes_between_nodes_in_fewer_messages():
    bars = exchange_bars(4, 2, 8e6, Link(0, 1e9), Link(1e-3, 1e9))
    name = "between nodes"
    assert bars["bytes"]["flat"][name] == bars["bytes"]["two levels"][name] == 6e6
    assert [bars["messages"][way][name] for way in ("flat", "two levels")] == [6, 3]
    # by hand: 1 MB inside and 6 between at 1 GB/s, 6 messages of 1 ms; 4 MB, 6 MB, 3 messages
    seconds = {way: list(parts.values()) for way, parts in bars["seconds"].items()}
    assert seconds["flat"] == pytest.approx([1e-3, 6e-3 + 6e-3])
    assert seconds["two levels"] == pytest.approx([4e-3, 6e-3 + 3e-3])


@exchanges
def test_the_bars_and_the_curves_say_the_same_seconds(explorer):
    links = [Link(2e-6, 2e11), Link(1e-5, 2.5e10)]
    bars = exchange_bars(8, 8, 10**6, *links)
    panels = explorer.figure.axes
    end = max(end for _, _, end in blocks(panels[2], "between nodes"))
    assert end == pytest.approx(total(bars, "seconds", "flat"))
    for way in ("flat", "two levels"):
        (line,) = [line for line in panels[3].lines if line.get_gid() == way]
        at = line.get_xdata().tolist().index(10**6)
        assert line.get_ydata()[at] == pytest.approx(total(bars, "seconds", way))


@exchanges
def test_try_small_messages_and_two_levels_win_by_their_number(explorer):
    readout = chosen(explorer, "small messages").readout
    assert readout.startswith("Two levels win")
    assert "7 messages between nodes against 56" in readout
    assert (56 * DEFAULT["alpha_between"], 7 * DEFAULT["alpha_between"]) == (
        pytest.approx(560e-6),
        pytest.approx(70e-6),
    )


@exchanges
def test_try_large_messages_and_flat_wins(explorer):
    assert chosen(explorer, "large messages").readout.startswith("Flat wins")


@exchanges
def test_try_64_nodes_and_two_levels_win_up_to_eight_times_the_bytes(explorer):
    ends = []
    for label in ("small messages", "64 nodes"):
        explorer_now = chosen(explorer, label)
        (span,) = [p for p in explorer_now.figure.axes[3].patches if p.get_gid()]
        ends.append(span.get_extents().transformed(explorer.figure.axes[3].transData.inverted()).x1)
    assert ends[1] / ends[0] == pytest.approx(8)
    assert "below 1.02 GB" in explorer.readout


def test_equal_links_leave_two_levels_the_smaller_messages():
    same = {
        "alpha_inside": 1e-5,
        "speed_inside": 1e10,
        "alpha_between": 1e-5,
        "speed_between": 1e10,
    }
    small = render_exchange(**DEFAULT | same | {"num_bytes": 10**4})
    large = render_exchange(**DEFAULT | same | {"num_bytes": 10**8})
    assert small.get_label().startswith("Two levels win")
    assert large.get_label().startswith("Flat wins")
