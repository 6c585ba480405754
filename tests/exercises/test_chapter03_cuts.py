"""Chapter 03's two other predictions: their keys are what the package computes."""

import sys

import cloudpickle
import torch
from torch import nn

from pedagogy.exercises.chapter03_cuts import BIAS, SCORES
from pedagogy.exercises.prediction import judge
from pedagogy.measure import memory_meter
from pedagogy.ranks import launch
from pedagogy.tensor_parallel import RowParallelLinear, ring_attention

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def bias_before_the_sum(group):
    whole = nn.Linear(4, 1)
    with torch.no_grad():
        whole.weight.copy_(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
        whole.bias.fill_(10.0)
    row = RowParallelLinear.from_linear(group, whole)
    return group.all_reduce(row.partial(torch.ones(1)) + row.bias).item(), row(torch.ones(1)).item()


def test_C14_the_bias_of_the_prediction_is_added_on_every_rank_and_once_by_the_layer():
    wrong, right = launch(bias_before_the_sum, 4)[0]
    assert (wrong, right) == (50.0, 20.0)
    assert judge(BIAS, wrong).startswith("correct")
    assert "one process computes" in judge(BIAS, right)


def peak_of_a_ring(group):
    with memory_meter() as meter:
        q, k, v = torch.ones(3, 1, 1, 1024 // group.size, 1)
        ring_attention(group, q, k, v, causal=False)
    return meter.peak


def test_a_ring_holds_the_scores_of_one_block_at_a_time():
    whole, part = (launch(peak_of_a_ring, ranks)[0] for ranks in (1, 4))
    assert abs(whole / part / 16 - 1) < 0.1
    assert judge(SCORES, 2 * 32_768**2 / 1e6 / 8**2).startswith("correct")
    assert "at once" in judge(SCORES, 2 * 32_768**2 / 1e6 / 8)
    assert "MiB" in judge(SCORES, 2 * 4096**2 / 2**20)
    assert "4 bytes" in judge(SCORES, 67.1)
