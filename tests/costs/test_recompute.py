"""Bounds, AlexNet's row, bytes and FLOPs of recomputation, against runs and printed tables."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from pedagogy.costs import published, recompute
from pedagogy.costs.activations import selective_flops_fraction
from pedagogy.costs.compute import gpt_training_flops
from pedagogy.measure import count_flops, memory_meter
from pedagogy.recompute import (
    attention_scores,
    by_rule,
    checkpoint,
    checkpoint_sequential,
    optimal_forwards,
    plan,
)
from pedagogy.workloads import GPT, text_batch

SIZES = {"layers": 5, "hidden": 32, "heads": 4, "sequence": 16, "batch": 3}
FLOP_SIZES = {key: SIZES[key] for key in ("layers", "hidden", "sequence", "batch")}


def gpt_loss(run_blocks):
    """A GPT of SIZES; its loss, with the blocks run as told, as a function of nothing."""
    torch.manual_seed(0)
    model = GPT(256, *(SIZES[key] for key in ("layers", "hidden", "heads", "sequence")))
    ids, targets = text_batch(SIZES["batch"], SIZES["sequence"])

    def loss():
        x = run_blocks(model.blocks, model.embed(ids))
        return functional.cross_entropy(model.unembed(x).flatten(0, 1), targets.flatten())

    return model, loss


def plainly(blocks, x):
    for block in blocks:
        x = block(x)
    return x


@pytest.mark.parametrize("segments", [1, 2, 3, 4, 5])
def test_bytes_of_a_gpt_in_segments_are_those_of_the_meter(segments):
    model, loss = gpt_loss(lambda blocks, x: checkpoint_sequential(blocks, segments, x))
    with memory_meter(model) as meter:
        result = loss()
        found = {"after forward": meter.now_by_kind["activations"]}
        result.backward()
        del result
        left = meter.now_by_kind["activations"]
    found["peak"] = max(kinds["activations"] for _, kinds in meter.curve)
    assert found == recompute.gpt_segment_bytes(**SIZES, segments=segments)
    assert left == 0  # the second run's tensors too are gone


@pytest.mark.parametrize("segments", [1, 2, 3, 5])
def test_flops_that_run_again_are_those_of_the_counter(segments):
    _, plain = gpt_loss(plainly)
    _, loss = gpt_loss(lambda blocks, x: checkpoint_sequential(blocks, segments, x))
    extra = count_flops(lambda: loss().backward()) - count_flops(lambda: plain().backward())
    assert extra == recompute.gpt_recompute_flops(**FLOP_SIZES, segments=segments)


def test_flops_of_blocks_one_by_one_stay_under_one_more_forward():
    def one_by_one(blocks, x):
        for block in blocks:
            x = checkpoint(block, x)
        return x

    _, plain = gpt_loss(plainly)
    _, loss = gpt_loss(one_by_one)
    step = count_flops(lambda: plain().backward())
    extra = count_flops(lambda: loss().backward()) - step
    assert step == gpt_training_flops(**FLOP_SIZES)
    assert extra == recompute.gpt_recompute_flops(**FLOP_SIZES)
    assert extra < (recompute.FORWARD_AGAIN - 1) * step


def test_flops_of_attention_scores_are_those_of_the_counter_and_half_of_the_papers():
    model, _ = gpt_loss(plainly)
    batch = text_batch(SIZES["batch"], SIZES["sequence"])

    def selective():
        with by_rule(attention_scores):
            loss = model.loss(*batch)
        loss.backward()

    extra = count_flops(selective) - count_flops(lambda: model.loss(*batch).backward())
    assert extra == recompute.gpt_selective_flops(**FLOP_SIZES)
    layers = gpt_training_flops(**FLOP_SIZES, vocabulary=0)
    papers = selective_flops_fraction(SIZES["sequence"], SIZES["hidden"])
    assert extra / layers == pytest.approx(papers / 2)


@pytest.mark.parametrize(("layers", "segments"), [(16, 1), (16, 4), (16, 16), (14, 3), (9, 5)])
def test_a_chain_of_equal_layers_holds_as_many_units_as_said(layers, segments):
    weight = torch.randn(7, 11, requires_grad=True)
    with memory_meter() as meter:
        x = weight + 0  # GELU saves its input: this is the first unit
        node = checkpoint_sequential([functional.gelu] * layers, segments, x).grad_fn
        del x
        kept = meter.now
    assert node is not None  # what is kept hangs on it
    assert kept == 4 * weight.numel() * recompute.units_as_run(layers, segments)


def test_the_bounds_are_least_at_the_square_root():
    for layers in (1, 4, 9, 100, 1024):
        units = [recompute.segment_units(layers, k) for k in range(1, layers + 1)]
        assert min(units) == pytest.approx(recompute.least_units(layers))
        assert units.index(min(units)) + 1 == math.isqrt(layers)


def test_the_recursion_is_its_closed_form():
    def units(layers, segments):
        return 0 if layers == 1 else segments + units(layers // (segments + 1), segments)

    for segments, depth in ((1, 10), (2, 5), (3, 4)):
        layers = (segments + 1) ** depth
        assert recompute.recursive_units(layers, segments) == pytest.approx(units(layers, segments))
    assert recompute.recursive_units(1024) == pytest.approx(10)
    assert optimal_forwards(1024, 10) < 10 * 1024  # at most log2(n) forwards of each layer


def test_alexnet_gives_the_published_row():
    (row,) = (r for r in published.table("superneurons_table1").rows if r["network"] == "AlexNet")
    chain = recompute.alexnet(200)
    for policy, column in (("speed", "speed"), ("memory", "memory"), ("cost", "cost_aware")):
        found = plan([1.0] * 22, chain.sizes, policy, None, chain.kept, chain.input_size)
        assert found.extra_forwards == row[f"{column}_extra"]
        assert found.peak / recompute.MIB == pytest.approx(row[f"{column}_peak_MB"], abs=6e-3)
    assert [len(segment.layers) for segment in found.segments] == [3, 3, 1, 1, 2, 2, 2]


def test_alexnets_sizes_are_those_of_the_net_when_it_runs():
    norm = nn.LocalResponseNorm(5)
    layers = [
        *(nn.Conv2d(3, 96, 11, 4), nn.ReLU(), norm, nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(96, 256, 5, padding=2), nn.ReLU(), norm, nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(256, 384, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(384, 384, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.Linear(9216, 4096), nn.ReLU(), nn.Dropout()),
        *(nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 1000)),
    ]
    x, found = torch.empty(1, 3, 227, 227, device="meta"), []
    for layer in layers:
        x = x.flatten(1) if isinstance(layer, nn.Linear) else x
        x = layer.to("meta")(x)
        found.append(4 * x.numel())
    chain = recompute.alexnet(1)
    assert tuple(found) == chain.sizes
    is_kept = [isinstance(layer, nn.Conv2d | nn.Linear) for layer in layers]
    assert chain.kept == tuple(i for i, kept in enumerate(is_kept) if kept)
    assert len(chain.names) == len(set(chain.names)) == 22


def test_overheads_of_a_layer_recompute_from_the_printed_milliseconds():
    found = recompute.layer_overheads()
    assert len(found) == 4
    for computed, printed in found.values():
        assert round(computed) == printed
    full, selective = found["baseline with recompute"][0], found["selective recompute"][0]
    assert full == pytest.approx(100 * (27.2 / 19.6 - 1))
    assert full > 100 * (recompute.FORWARD_AGAIN - 1) > selective


@pytest.mark.parametrize("call", [recompute.segment_units, recompute.recursive_units])
@pytest.mark.parametrize("segments", [0, 6])
def test_segments_that_cannot_be_are_refused(call, segments):
    with pytest.raises(ValueError, match=f"{segments} segments of 5 layers"):
        call(5, segments)


def test_sizes_below_one_are_refused():
    with pytest.raises(ValueError, match="'batch': 0"):
        recompute.gpt_selective_flops(1, 8, 4, 0)
    with pytest.raises(ValueError, match="a batch of 0"):
        recompute.alexnet(0)
