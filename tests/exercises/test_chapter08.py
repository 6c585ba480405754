"""Chapter 08: the references are what the package does, and what trying everything finds."""

from __future__ import annotations

import random
from itertools import combinations, pairwise, product

import pytest
import torch
from torch import nn

from pedagogy.exercises import engine, prediction
from pedagogy.exercises.chapter08 import CASES as LAYERS
from pedagogy.exercises.chapter08 import CHECKPOINTED, _one_step, checkpointed
from pedagogy.exercises.chapter08_cuts import CHAINS, best_cuts, equal, falling, peak_of
from pedagogy.exercises.chapter08_decide import (
    CASES,
    DECIDE,
    Saved,
    bytes_over,
    decide,
    iteration,
    lost_seconds,
)
from pedagogy.exercises.chapter08_policies import ALEXNET, POLICY_CASES, extra_forwards
from pedagogy.exercises.chapter08_predictions import ALEX, BATCHES, BINOMIAL, FLOPS, SQRT, UNEQUAL
from pedagogy.measure import memory_meter
from pedagogy.recompute import checkpoint, plan

MIB = 2**20


@pytest.mark.parametrize("label", LAYERS)
def test_dropping_changes_memory_and_nothing_else(label):
    dropped = _one_step(checkpointed, *LAYERS[label])
    plain = _one_step(lambda function, x: function(x), *LAYERS[label])
    kept = plain.pop("bytes kept inside after forward")
    assert dropped.pop("bytes kept inside after forward") == 0 < kept
    assert dropped.pop("runs of the function") == 2 == 2 * plain.pop("runs of the function")
    torch.testing.assert_close(dropped, plain, rtol=0, atol=0)


def test_C27_backward_sees_the_mask_of_forward_and_the_stream_goes_on():
    torch.manual_seed(0)
    x = torch.ones(64, requires_grad=True)
    output = checkpointed(lambda x: nn.functional.dropout(x, 0.5) * 1.0, x)
    between = torch.rand(1)
    output.sum().backward()
    after = torch.rand(1)
    assert torch.equal(x.grad, output)
    torch.manual_seed(0)
    nn.functional.dropout(torch.ones(64), 0.5)
    assert torch.equal(torch.rand(2), torch.cat([between, after]))


def test_C29_weights_have_gradients_where_the_input_needs_none():
    linear = nn.Linear(2, 2)
    checkpointed(linear, torch.ones(1, 2)).sum().backward()
    assert linear.weight.grad.tolist() == [[1, 1], [1, 1]]


def test_the_package_s_checkpoint_is_correct():
    """It stops at the last tensor that is asked for: its second run counts all the same."""
    assert engine.explain(CHECKPOINTED, checkpoint).startswith("correct")


# --- cuts and policies ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_no_other_cut_needs_less(seed):
    draw = random.Random(seed)
    sizes = [draw.randint(1, 20) for _ in range(draw.randint(1, 9))]
    others = range(1, len(sizes))
    cuts = [[0, *c] for n in range(len(sizes)) for c in combinations(others, n)]
    assert peak_of(best_cuts(sizes), sizes) == min(peak_of(starts, sizes) for starts in cuts)


@pytest.mark.parametrize("layers", [1, 3, 4, 36, 64])
def test_equal_layers_want_lengths_that_fall_by_one(layers):
    peak = peak_of(best_cuts([1] * layers), [1] * layers)
    assert peak * (peak + 1) // 2 >= layers > peak * (peak - 1) // 2
    assert peak == peak_of(falling([1] * layers), [1] * layers)


def test_a_peak_by_hand():
    """Segments of 2 and 3 layers: 9 + 4, and 9 beside 5 + 1 + 2."""
    assert peak_of([0, 2], [9, 4, 5, 1, 2]) == max(9 + 4, 9 + 5 + 1 + 2)


def test_the_peak_is_measured_in_a_chain_of_sines():
    """Each saves its input; besides, there are the output, a gradient, a cosine, their product."""
    sizes, besides = CHAINS["36 equal layers"], set()
    for starts in (best_cuts(sizes), equal(sizes, 6)):
        with memory_meter() as meter:
            x = torch.ones(1_000, requires_grad=True)
            for first, end in pairwise([*starts, len(sizes)]):
                x = checkpointed(sines(end - first), x)
            (2 * x).sum().backward()
        besides.add(meter.peak // 4_000 - peak_of(starts, sizes))
    assert besides == {4}


def sines(layers):
    def run(x):
        for _ in range(layers):
            x = x.sin()
        return x

    return run


def planned(sizes, kept, input_size, policy):
    stays = [layer for layer, it in enumerate(kept) if it]
    found = plan([1] * len(sizes), sizes, policy, kept=stays, input_size=input_size)
    return found.extra_forwards, found.peak


@pytest.mark.parametrize("label", POLICY_CASES)
def test_policies_cost_what_the_package_plans(label):
    assert extra_forwards(*POLICY_CASES[label]) == planned(*POLICY_CASES[label])


@pytest.mark.parametrize("seed", range(8))
def test_policies_cost_what_the_package_plans_for_any_chain(seed):
    draw = random.Random(seed)
    sizes = [draw.randint(1, 9) for _ in range(10)]
    chain = sizes, [draw.random() < 0.3 for _ in sizes], draw.randint(0, 9)
    for policy in ("speed", "memory", "cost"):
        assert extra_forwards(*chain, policy) == planned(*chain, policy)


@pytest.mark.parametrize(
    ("policy", "forwards", "mebibytes"),
    [("speed", 14, 993.018), ("memory", 23, 886.230), ("cost", 17, 886.230)],
)
def test_alexnet_is_the_paper_s_row(policy, forwards, mebibytes):
    found = extra_forwards(*ALEXNET, policy)
    assert found[0] == forwards
    assert found[1] / MIB == pytest.approx(mebibytes, abs=5e-4)


# --- keep, swap or recompute ----------------------------------------------------------------------

THREE = [Saved(4, 1.0, 20.0, 5.0), Saved(6, 2.0, 15.0, 2.0), Saved(8, 9.0, 11.0, 1.0)]


@pytest.mark.parametrize(
    ("actions", "lost"),
    [
        (["keep", "keep", "keep"], 0),
        (["swap", "keep", "keep"], 0),  # out 1 to 5, back 10 to 14
        (["swap", "swap", "keep"], (11 - 10) + (21 - 20)),  # out to 5 and 11; back 17 and 21
        (["keep", "swap", "recompute"], 1),  # back 10 to 16, and 15 has become 16
        (["recompute", "keep", "recompute"], 6),
        (["keep", "keep", "swap"], (17 - 10) + (25 - 18)),  # out to 17; back 25, asked at 18
    ],
)
def test_the_clock_by_hand(actions, lost):
    assert lost_seconds(actions, THREE, 10.0, 1.0) == lost


@pytest.mark.parametrize("label", [label for label in CASES if "20" not in label])
def test_the_rule_finds_the_optimum_in_the_small_cases(label):
    tensors, turn, budget, bandwidth = CASES[label]
    everything = product(("keep", "swap", "recompute"), repeat=len(tensors))
    optimum = min(
        lost_seconds(actions, tensors, turn, bandwidth)
        for actions in everything
        if not bytes_over(actions, tensors, budget)
    )
    chosen = decide(tensors, turn, budget, bandwidth)
    assert bytes_over(chosen, tensors, budget) == 0
    assert lost_seconds(chosen, tensors, turn, bandwidth) == optimum


def test_both_together_lose_less_than_either_alone():
    tensors, turn, budget, bandwidth = CASES["20 tensors"]
    chosen = decide(tensors, turn, budget, bandwidth)
    assert {"swap", "recompute"} <= set(chosen)
    lost = lost_seconds(chosen, tensors, turn, bandwidth)
    for mistake, _ in DECIDE.mistakes[:4]:
        other = mistake(tensors, turn, budget, bandwidth)
        assert bytes_over(other, tensors, budget) == 0
        assert lost < lost_seconds(other, tensors, turn, bandwidth)


@pytest.mark.parametrize("seed", range(10))
def test_the_rule_keeps_any_budget(seed):
    draw = random.Random(seed)
    layers = [(draw.randint(1, 20), draw.choice([0.5, 2.0]), draw.random()) for _ in range(8)]
    tensors, turn = iteration(layers)
    budget = draw.randint(0, sum(tensor.nbytes for tensor in tensors))
    assert bytes_over(decide(tensors, turn, budget, 2.0), tensors, budget) == 0


# --- predictions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "by_hand"),
    [
        (BATCHES, [2, 1]),
        (FLOPS, (1 + 2 + 1) / (1 + 2) - 1),
        (SQRT, 8 + 64 / 8),
        (UNEQUAL, 11),
        (BINOMIAL, 2 * 10 - 5),
        (ALEX, [14, 23]),
    ],
)
def test_keys_by_hand(asked, by_hand):
    assert prediction.judge(asked, by_hand).startswith("correct")
