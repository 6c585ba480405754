"""What compression should save, held to files that are written and to the memory meter."""

from __future__ import annotations

import pytest
import torch
from torch.nn.utils import parametrize

from pedagogy.compression import Binary, Masks, Quantized, SharedWeight, share_weights
from pedagogy.compression.files import Packed, Shared, gaps_of, section_bytes
from pedagogy.compression.frontier import image_flops
from pedagogy.costs import compression
from pedagogy.costs.compression import Layer, training_bytes
from pedagogy.measure import memory_meter
from pedagogy.workloads import MLP, digits_batch

SIZES = (64, 24, 10)
WEIGHTS = 64 * 24 + 24 * 10
VALUES = 4


def test_values_and_gaps_of_a_file_have_the_bits_of_the_formula():
    generator = torch.Generator().manual_seed(0)
    mask = (torch.rand(50, 80, generator=generator) < 0.04).float()
    kept, gaps = int(mask.sum()), gaps_of(mask, 4)
    shared = Shared(mask, torch.arange(16.0), torch.randint(16, mask.shape, generator=generator))
    sections = section_bytes(shared, gap_bits=4)
    bits = compression.sparse_bits(kept, weight_bits=4, gap_bits=4, num_fillers=len(gaps) - kept)
    assert len(gaps) > kept
    assert sections["codebook"] == 64
    assert 0 <= 8 * (sections["codes"] + sections["gaps"]) - bits < 2 * 8  # whole bytes, twice


@pytest.mark.parametrize(("density", "gap_bits"), [(0.04, 4), (0.1, 3), (0.3, 2), (0.5, 1)])
def test_random_pruning_needs_as_many_fillers_as_expected(density, gap_bits):
    mask = torch.rand(200_000, generator=torch.Generator().manual_seed(1)) < density
    fillers = len(gaps_of(mask.float(), gap_bits)) - int(mask.sum())
    expected = compression.fillers_per_weight(density, gap_bits) * int(mask.sum())
    assert fillers == pytest.approx(expected, rel=0.03)


def test_fillers_of_a_density_worked_by_hand():
    assert compression.fillers_per_weight(0.5, 1) == pytest.approx(1)  # 1/2 / (1 - 1/2)
    assert compression.fillers_per_weight(1, 5) == 0
    with pytest.raises(ValueError, match=r"density 0, 5 bits: above 0 to 1"):
        compression.fillers_per_weight(0, 5)
    with pytest.raises(ValueError, match="0 bits: above 0 to 1, and at least 1 bit"):
        compression.fillers_per_weight(0.5, 0)


def test_the_rate_of_a_layer_worked_by_hand():
    """1,000 weights, a quarter kept, 6 + 5 bits: 1/4 * 11/32, and 64 values of 32 bits."""
    assert compression.layer_rate(0.25, 6, 5, 1000) == pytest.approx(0.0859375 + 0.064)
    huffman = compression.layer_rate(0.25, 4.5, 3.5, 1000, codebook_bits=6)
    assert huffman == pytest.approx(0.0625 + 0.064)
    layers = [Layer("a", 10, 30), Layer("b", 10, 10)]
    assert compression.total_rate(layers, [0.1, 0.5]) == pytest.approx(0.2)


def test_a_layer_multiplies_once_for_each_weight_and_place():
    assert Layer("conv", 6, 4, kernel=9, places=10, groups=2).multiplications == 3 * 4 * 9 * 10
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 6, 3), torch.nn.Conv2d(6, 4, 3, padding=1, groups=2)
    )
    first = Layer("", 1, 6, 9, 36)
    second = Layer("", 6, 4, 9, 36, groups=2)
    flops = 2 * (first.multiplications + second.multiplications)
    assert image_flops(model) == (flops, flops)


def test_fewer_channels_are_read_by_the_next_layer_flattened_or_not():
    chain = (Layer("a", 3, 8, 9, 16), Layer("b", 8, 6, 9, 16), Layer("c", 6 * 4, 10))
    shrunk = compression.with_outputs(chain, [4, 3, 10])
    assert [(layer.inputs, layer.outputs) for layer in shrunk] == [(3, 4), (4, 3), (12, 10)]
    with pytest.raises(ValueError, match="b: 7 outputs, from 1 to 6"):
        compression.with_outputs(chain, [4, 7, 10])


def test_a_layer_multiplies_where_weight_and_input_are_there():
    assert compression.kept_flops([0.5, 0.2], [0.4, 1.0]) == pytest.approx([0.5, 0.2 * 0.4])


def compress(model: MLP, way: str) -> Masks:
    """Make the layers what `way` says; in "pruned" the masks are returned, else none."""
    masks = Masks()
    for layer in model.layers[::2]:
        weight = layer.weight
        codebook, indices = share_weights(weight, VALUES)
        if way == "pruned":
            masks.prune([weight], 0.5)
        elif "shared" in way:
            mask = (weight.detach().abs() > 0.05).float() if "pruned" in way else None
            part = SharedWeight(codebook, indices, mask)
            parametrize.register_parametrization(layer, "weight", part)
        elif way in ("quantised", "binary"):
            part = Binary() if way == "binary" else Quantized(8)
            parametrize.register_parametrization(layer, "weight", part)
    return masks


@pytest.mark.parametrize("way", compression.WAYS)
def test_training_holds_the_bytes_of_the_formula(way):
    torch.manual_seed(0)
    model = MLP(SIZES)
    masks = compress(model, way)
    batch = digits_batch(16)
    optimizer = torch.optim.Adam(model.parameters())
    model.loss(*batch).backward()
    optimizer.step()
    with memory_meter(model, optimizer) as meter:
        masks.of = {parameter: mask.clone() for parameter, mask in masks.of.items()}
        held = meter.now_by_kind
    biases, codebooks = 24 + 10, 2 * VALUES if "shared" in way else 0
    expected = training_bytes(way, WEIGHTS, biases, codebooks)
    counters = 4 * len(optimizer.state)
    assert held["parameters"] == expected["parameters"]
    assert held["gradients"] == expected["gradients"]
    assert held["optimizer_state"] - counters == expected["optimizer_state"]
    in_masks = held["buffers"] + held["activations"]  # `Masks` are nobody's: counted as the latter
    assert in_masks == expected["masks and indices"]


@pytest.mark.parametrize("way", ["shared", "quantised", "binary"])
def test_during_a_step_the_rebuilt_weight_comes_on_top(way):
    kept = {}
    for name in ("full", way):
        torch.manual_seed(0)
        model = MLP(SIZES)
        compress(model, name)
        batch = digits_batch(16)
        with memory_meter(model) as meter:
            loss = model.loss(*batch)
            kept[name] = meter.now_by_kind["activations"]
        assert loss.isfinite()
    assert kept[way] - kept["full"] >= 4 * 24 * 10  # of the layer whose input needs a gradient


def test_at_its_peak_a_step_holds_as_much_as_that_of_the_full_network_or_more():
    peaks = {}
    for way in compression.WAYS:
        torch.manual_seed(0)
        model = MLP()
        masks = compress(model, way)
        optimizer = torch.optim.Adam(model.parameters())
        model.loss(*digits_batch(64)).backward()
        optimizer.step()
        batch = digits_batch(64)
        with memory_meter(model, optimizer) as meter:
            masks.of = {parameter: mask.clone() for parameter, mask in masks.of.items()}
            optimizer.zero_grad()
            model.loss(*batch).backward()
            optimizer.step()
            masks.apply()
        peaks[way] = meter.peak
    full = peaks.pop("full")
    assert min(peaks.values()) > 0.97 * full
    assert min(peaks["pruned"], peaks["pruned and shared"], peaks["binary"]) > 1.15 * full
    held = [sum(training_bytes(way, 1000, 0).values()) for way in ("full", "pruned", "shared")]
    assert held == [16_000, 20_000, 12_000]  # the shared one's 4 and more come back in the step


def test_a_teacher_adds_its_parameters_and_nothing_else():
    alone = training_bytes("full", 0, 100)
    taught = training_bytes("full", 0, 100, teacher=1000)
    assert {kind: taught[kind] - alone[kind] for kind in alone if taught[kind] != alone[kind]} == {
        "teacher": 4000
    }
    with pytest.raises(ValueError, match="no way 'ternary': choose one of full, pruned"):
        training_bytes("ternary", 1, 0)


@pytest.mark.parametrize("bits", [1, 3, 8, 16])
def test_packed_integers_take_their_bits(bits):
    packed = Packed(torch.ones(7, 9, dtype=torch.int16), torch.tensor(2.0), bits)
    assert section_bytes(packed) == {"integers": -(-63 * bits // 8), "scale": 4}
