"""FLOPs: the closed form is PyTorch's count; a published training time follows from it."""

from __future__ import annotations

import pytest

from pedagogy.costs import compute, memory
from pedagogy.measure import count_flops
from pedagogy.workloads import GPT, text_batch


@pytest.mark.parametrize(
    "size", [(2, 64, 4, 64, 4, 256), (3, 24, 3, 17, 5, 100), (1, 8, 1, 4, 1, 11)]
)
def test_training_flops_of_our_gpt_are_pytorchs_count(size):
    layers, hidden, heads, sequence, batch, vocabulary = size
    model = GPT(vocabulary, layers, hidden, heads, sequence)
    inputs, targets = (ids % vocabulary for ids in text_batch(batch, sequence))
    counted = count_flops(lambda: model.loss(inputs, targets).backward())
    assert compute.gpt_training_flops(layers, hidden, sequence, batch, vocabulary) == counted


def test_six_times_parameters_times_tokens_comes_within_five_percent_for_a_large_gpt():
    sizes = {"layers": 96, "hidden": 12_288, "sequence": 2048}  # GPT-3
    exact = compute.gpt_training_flops(**sizes, batch=1, vocabulary=51_200)
    estimate = compute.training_flops(memory.gpt_parameters(vocabulary=51_200, **sizes), 2048)
    assert exact == pytest.approx(estimate, rel=0.05)
    assert exact != estimate


def test_gpt3_on_1024_gpus_takes_34_days_as_the_ptdp_paper_says():
    seconds = compute.training_seconds(175 * 10**9, 300 * 10**9, 1024, 140e12, 8)
    assert round(seconds / 86_400) == 34  # Narayanan et al. 2021, section 5.1, with recomputation


def test_no_devices_or_no_speed_is_refused():
    with pytest.raises(ValueError, match="0 devices"):
        compute.training_seconds(1, 1, 0, 1e12)
    with pytest.raises(ValueError, match="at 0 FLOP/s"):
        compute.training_seconds(1, 1, 1, 0)
