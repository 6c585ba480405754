"""The explorers of chapter 09 say what the compressed network does, over all their controls."""

import math
import re

import pytest
import torch
from torch import nn

from pedagogy.compression import break_even_rank, low_rank, magnitude_mask, share_weights
from pedagogy.compression.files import gaps_of
from pedagogy.compression.quantization import binarize, quantize
from pedagogy.plots import style
from pedagogy.widgets.chapter09 import file_bytes, pruned, sparse_bytes, threshold_explorer
from pedagogy.widgets.chapter09_bits import QUANTISED, SHARED, bits_explorer, in_bits, weight_bytes
from pedagogy.widgets.chapter09_network import ALL, ONE, Network
from pedagogy.widgets.chapter09_rank import rank_explorer
from pedagogy.workloads import MLP, digits, digits_batch
from tests.widgets.driving import assert_every_control_moves, assert_three_trials_draw

LAYERS = ["layers.0", "layers.2"]
EXPLORERS = [threshold_explorer, bits_explorer, rank_explorer]


@pytest.fixture(scope="module")
def trained():
    """A small network that knows the digits, and the test digits."""
    torch.manual_seed(0)
    model = MLP((64, 24, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(100):
        optimizer.zero_grad()
        model.loss(*digits_batch(64, step=step)).backward()
        optimizer.step()
    return model, *digits()[2:]


@pytest.fixture(scope="module")
def make(trained):
    """The explorer of a factory for the trained network; all are closed in the end."""
    made = {}

    def explorer(factory):
        if factory not in made:
            made[factory] = factory(*trained)
        return made[factory]

    yield explorer
    for one in made.values():
        one.close()


def accuracy(trained, **weights):
    """By a real copy of the network, its layers set."""
    model, images, labels = trained
    copy = MLP((64, 24, 10))
    copy.load_state_dict({**model.state_dict(), **weights})
    return (copy(images).argmax(1) == labels).float().mean().item()


def told(explorer, what):
    """The percentage that follows some words in the readout."""
    return float(re.search(rf"{what} ([\d.]+)%", explorer.readout)[1]) / 100


def chosen(explorer, label):
    (trial,) = [trial for trial in explorer.try_this if trial.label == label]
    explorer.set(**trial.values)
    return trial


@pytest.mark.parametrize("factory", EXPLORERS)
def test_every_control_can_be_moved_over_its_whole_range(make, factory):
    explorer = make(factory)
    assert_every_control_moves(explorer)
    assert_three_trials_draw(explorer)


@pytest.mark.parametrize("factory", EXPLORERS)
def test_the_readout_is_one_sentence_and_the_network_is_left_as_it_is(make, trained, factory):
    before = {name: value.clone() for name, value in trained[0].state_dict().items()}
    explorer = make(factory)
    chosen(explorer, explorer.try_this[1].label)
    assert explorer.readout.endswith(".")
    assert not re.search(r"\. [A-Z]", explorer.readout)
    assert all(torch.equal(before[name], now) for name, now in trained[0].state_dict().items())
    assert trained[0].training
    assert all(parameter.requires_grad for parameter in trained[0].parameters())


def test_a_network_needs_layers_and_labels(trained):
    with pytest.raises(ValueError, match="0 linear layers"):
        Network(nn.Flatten(), *trained[1:])
    with pytest.raises(ValueError, match="360 images, 9 labels"):
        Network(trained[0], trained[1], trained[2][:9])


# --- threshold --------------------------------------------------------------------------------


@pytest.mark.parametrize(("scope", "sparsity"), [(ALL, 80), (ONE, 90), (ALL, 0)])
def test_accuracy_and_bytes_are_those_of_the_pruned_network(make, trained, scope, sparsity):
    explorer = make(threshold_explorer).set(layer="layers.0", scope=scope, sparsity=sparsity)
    names = LAYERS if scope == ALL else LAYERS[:1]
    state = trained[0].state_dict()
    masks = {f"{n}.weight": magnitude_mask(state[f"{n}.weight"], sparsity / 100) for n in names}
    expected = accuracy(trained, **{name: state[name] * mask for name, mask in masks.items()})
    assert told(explorer, "accuracy is") == pytest.approx(expected, abs=5e-4)
    size = 4 * (24 + 10) + (4 * 240 if scope == ONE else 0)
    for mask in masks.values():
        size += math.ceil((32 * int(mask.sum()) + 5 * len(gaps_of(mask, 5))) / 8)
    network = Network(*trained)
    assert file_bytes(network, pruned(network, names, sparsity / 100)) == size
    assert f"a file has {style.bytes_text(size)} instead of 7.24 kB" in explorer.readout
    held = 16 * (64 * 24 + 24 + 240 + 10)
    assert f"still holds {style.bytes_text(held)} and masks of" in explorer.readout


@pytest.mark.parametrize(("place", "bits"), [(30, 37), (31, 42), (61, 42), (62, 47)])
def test_a_gap_of_31_zeros_needs_a_filler(place, bits):
    weight = torch.zeros(80)
    weight[place] = 1.0
    assert sparse_bytes(weight) == math.ceil(bits / 8)  # 32 of the value, 5 for each gap
    assert bits == 32 + 5 * len(gaps_of(weight, 5))


def test_the_threshold_is_the_least_weight_that_is_kept(make, trained):
    explorer = make(threshold_explorer).set(layer="layers.2", scope=ALL, sparsity=70)
    sizes = trained[0].layers[2].weight.abs().flatten().sort().values
    assert f"(layers.2: all below {sizes[168].item():.2g})" in explorer.readout
    ends = [one.get_xdata()[0] for one in explorer.figure.axes[0].lines]
    assert ends == pytest.approx([-sizes[168].item(), sizes[168].item()])
    assert "below" not in explorer.set(sparsity=0).readout


def test_try_half_and_nine_in_ten_and_one_layer(make, trained):
    explorer = make(threshold_explorer)
    half = chosen(explorer, "half of them").outcome
    assert f"accuracy is {100 * told(explorer, 'accuracy is'):.3g}%" in half
    with_half = told(explorer, "accuracy is")
    most = chosen(explorer, "nine in ten").outcome
    without = told(explorer, "accuracy is")
    assert most.startswith(f"accuracy {100 * without:.3g}%, file ")
    assert without < with_half < accuracy(trained)
    alone = chosen(explorer, "one layer only").outcome
    assert alone.endswith(f"alone: {100 * told(explorer, 'accuracy is'):.3g}%")
    assert "With 90% of layers.0's weights" in explorer.readout


# --- bits -------------------------------------------------------------------------------------


def test_bits_are_the_rooms_own_functions(trained):
    weight = trained[0].layers[0].weight.detach()
    assert torch.equal(in_bits(weight, QUANTISED, 3), quantize(weight, 3))
    assert torch.equal(in_bits(weight, QUANTISED, 1), binarize(weight, by_output=True))
    codebook, indices = share_weights(weight, 4, max_rounds=10)
    assert torch.equal(in_bits(weight, SHARED, 2), codebook[indices])
    assert len(in_bits(torch.arange(3.0), SHARED, 8).unique()) == 3  # no more values than weights


def test_a_file_holds_bits_and_the_codebook_or_the_scales():
    weight = torch.ones(24, 64)
    assert weight_bytes(weight, QUANTISED, 8) == 24 * 64 + 4
    assert weight_bytes(weight, QUANTISED, 1) == 24 * 64 // 8 + 4 * 24
    assert weight_bytes(weight, SHARED, 3) == 24 * 64 * 3 // 8 + 4 * 8


@pytest.mark.parametrize(("way", "bits", "size"), [(QUANTISED, 4, 1032), (SHARED, 2, 1584 - 720)])
def test_readings_are_those_of_the_network_in_few_bits(make, trained, way, bits, size):
    explorer = make(bits_explorer).set(layer="layers.2", scope=ALL, way=way, bits=bits)
    state = trained[0].state_dict()
    now = {f"{name}.weight": in_bits(state[f"{name}.weight"], way, bits) for name in LAYERS}
    assert told(explorer, "accuracy is") == pytest.approx(accuracy(trained, **now), abs=5e-4)
    weight = state["layers.2.weight"]
    error = ((now["layers.2.weight"] - weight).norm() / weight.norm()).item()
    assert told(explorer, "an error of") == pytest.approx(error, rel=5e-3)
    full = 4 * (24 + 10)
    codebooks = {QUANTISED: 4 * 2, SHARED: 4 * 4 * 2}[way]
    total = full + (64 * 24 + 240) * bits // 8 + codebooks
    assert f"a file has {style.bytes_text(total)} instead of 7.24 kB" in explorer.readout


def test_try_eight_bits_two_and_one(make, trained):
    explorer = make(bits_explorer)
    eight = chosen(explorer, "eight bits").outcome
    assert f"accuracy {100 * told(explorer, 'accuracy is'):.3g}% (full net" in eight
    assert told(explorer, "accuracy is") == pytest.approx(accuracy(trained), abs=0.01)
    two = chosen(explorer, "two bits, shared").outcome
    shared = told(explorer, "accuracy is")
    assert explorer.values["way"] == SHARED
    even = told(explorer.set(way=QUANTISED), "accuracy is")
    assert two == (
        f"four values placed by k-means: {100 * shared:.3g}%; three evenly spaced ones: "
        f"{100 * even:.3g}%"
    )
    assert shared > even + 0.1
    one = chosen(explorer, "one bit").outcome
    assert f"mean magnitude: {100 * told(explorer, 'accuracy is'):.3g}%" in one
    assert told(explorer, "accuracy is") > even


# --- rank -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [1, 5, 10])
def test_readings_are_those_of_the_factored_layer(make, trained, rank):
    explorer = make(rank_explorer).set(layer="layers.0", scope=ONE, rank=rank)
    layer = trained[0].layers[0]
    thin = low_rank(layer, rank)
    product = (thin[1].weight @ thin[0].weight).detach()
    error = ((product - layer.weight).norm() / layer.weight.norm()).item()
    expected = accuracy(trained, **{"layers.0.weight": product})
    assert told(explorer, "accuracy is") == pytest.approx(expected, abs=3.5e-3)  # one digit
    assert told(explorer, "error is") == pytest.approx(error, rel=5e-3)
    numbers = sum(part.weight.numel() for part in thin)
    assert f"With rank {rank} layers.0 has {numbers:,} numbers" in explorer.readout


def test_the_break_even_is_marked_and_decides_what_is_smaller(make):
    explorer = make(rank_explorer)
    even = break_even_rank(24, 64)
    assert ": smaller, as" in explorer.set(layer="layers.0", scope=ONE, rank=even).readout
    assert ": not smaller, as" in explorer.set(rank=even + 1).readout
    marks = [
        one for ax in explorer.figure.axes for one in ax.lines if one.get_gid() == "break-even"
    ]
    assert [one.get_xdata()[0] for one in marks] == [even] * 3


def test_a_rank_beyond_a_layers_own_is_its_own(make):
    explorer = make(rank_explorer).set(layer="layers.2", scope=ONE, rank=24)
    assert explorer.readout.startswith("With rank 10 layers.2 has 340 numbers, 1.42 times its 240")
    assert told(explorer, "error is") == 0


def test_try_break_even_80_percent_and_few(make, trained):
    explorer = make(rank_explorer)
    even = chosen(explorer, "break-even").outcome
    assert even.startswith("rank 17 of layers.0 has 97% of its numbers")  # 17 (24 + 64) / 1536
    most = chosen(explorer, "80% of the ranks").outcome
    assert most == "rank 19 of 24 is 1.09 times the layer"
    assert "1.09 times its 1,536: not smaller" in explorer.readout
    chosen(explorer, "few will do")
    few, full = explorer.values["rank"], accuracy(trained)
    assert told(explorer, "accuracy is") >= full - 0.0105
    assert told(explorer.set(rank=few - 1), "accuracy is") < full - 0.0095
