"""What k micro-batches cost: closed forms against the meter, and by hand."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from pedagogy.accumulation import accumulate
from pedagogy.costs import accumulation
from pedagogy.costs.memory import gpt_parameters
from pedagogy.measure import memory_meter
from pedagogy.workloads import GPT, text_batch

SIZES = (1, 32, 4, 16)  # layers, hidden, heads, sequence
BATCH = 8


def loss_sum(model, microbatch):
    inputs, targets = microbatch
    logits = model(inputs).flatten(0, 1)
    return functional.cross_entropy(logits, targets.flatten(), reduction="sum")


def measured_peak(k, make_optimizer):
    torch.manual_seed(0)
    model = GPT(256, *SIZES)
    optimizer = make_optimizer(model.parameters())
    pieces = (one.chunk(k) for one in text_batch(BATCH, SIZES[3]))
    microbatches = list(zip(*pieces, strict=True))

    def window():
        accumulate(model, microbatches, loss_sum, lambda one: one[1].numel())
        optimizer.step()

    window()
    optimizer.zero_grad()
    with memory_meter(model, optimizer) as meter:
        window()
    return {kind: held for kind, held in meter.by_kind.items() if kind != "buffers"}


@pytest.mark.parametrize("k", [1, 4])
def test_the_peak_of_a_window_is_what_the_meter_sees_byte_for_byte(k):
    assert measured_peak(k, torch.optim.Adam) == accumulation.gpt_peak_bytes(*SIZES, BATCH, k)


def test_the_peak_with_sgd_holds_no_state():
    peak = measured_peak(2, lambda p: torch.optim.SGD(p, lr=0.1))
    assert peak == accumulation.gpt_peak_bytes(*SIZES, BATCH, 2, optimizer="sgd")
    assert peak["optimizer_state"] == 0


def test_two_micro_batches_halve_the_activations_and_add_the_gradients():
    one, two = (accumulation.gpt_peak_bytes(*SIZES, BATCH, k) for k in (1, 2))
    scalars = 4 * 2 + 4 + 8  # of the loss: weights, sum, share; the mean
    assert (two["activations"] - scalars) * 2 == one["activations"] - scalars
    assert one["gradients"] == 0
    assert two["gradients"] == 4 * gpt_parameters(1, 32, 256, 16)


def test_a_model_that_is_large_beside_its_batch_needs_more_with_two_micro_batches():
    wide = (2, 512, 4, 8)
    peaks = [sum(accumulation.gpt_peak_bytes(*wide, 2, k).values()) for k in (1, 2)]
    assert peaks[1] >= peaks[0]


def test_a_window_is_k_launches_and_the_same_computation():
    """8 sequences of 1 s each, launches of 0.5 s."""
    assert accumulation.window_seconds(8, 1, 0.5, 1.0) == 8.5
    assert accumulation.window_seconds(8, 4, 0.5, 1.0) == 10
    assert accumulation.window_seconds(8, 4, 0.0, 1.0, 2.0, 3.0) == 13
    with pytest.raises(ValueError, match=r"seconds \(0.5, -1.0"):
        accumulation.window_seconds(8, 4, 0.5, -1.0)


def test_a_fitted_line_is_the_line_that_the_times_lie_on():
    sizes = [1, 2, 4, 8, 8]
    assert accumulation.fit_launch(sizes, [0.25 + 0.5 * b for b in sizes]) == pytest.approx(
        (0.25, 0.5)
    )
    # by hand: (1, 1), (3, 3), (2, 5): mean 2 and 3, slope (-1 * -2 + 1 * 0) / 2
    assert accumulation.fit_launch([1, 3, 2], [1, 3, 5]) == pytest.approx((1.0, 1.0))
    assert accumulation.fit_launch([1, 2, 3], [3, 2, 1]) == (2.0, 0.0)  # it cannot get faster
    assert accumulation.fit_launch([1, 2], [1, 3]) == pytest.approx((0.0, 1.4))  # nor begin early
    for wrong in (([2, 2], [1, 1]), ([1, 2], [1])):
        with pytest.raises(ValueError, match="at least two sizes"):
            accumulation.fit_launch(*wrong)


def test_one_all_reduce_a_window_sends_a_kth_of_k_of_them():
    """4 ranks: 2 x 3/4 of 1,000 bytes."""
    assert accumulation.sent_bytes(1000, 5, 4) == {
        "once a window": 1500,
        "for each micro-batch": 7500,
    }
    assert set(accumulation.sent_bytes(1000, 5, 1).values()) == {0}
    with pytest.raises(ValueError, match="0 micro-batches"):
        accumulation.sent_bytes(1000, 0, 4)


@pytest.mark.parametrize(("batch", "k", "near"), [(10, 4, "8 or 12"), (2, 3, "3"), (4, 0, "1 or")])
def test_micro_batches_that_do_not_divide_the_batch_are_refused(batch, k, near):
    with pytest.raises(ValueError, match=f"batch of {batch} in {k} micro-batches.*{near}"):
        accumulation.microbatch_size(batch, k)


def test_the_best_k_is_the_smallest_that_fits():
    assert accumulation.divisors(12) == [1, 2, 3, 4, 6, 12]
    peaks = {1: 100, 2: 110, 3: 70, 4: 60, 6: 50, 12: 40}
    best = [accumulation.best_num_microbatches(12, limit, peaks.get) for limit in (105, 99, 60, 40)]
    assert best == [1, 3, 4, 12]
    with pytest.raises(ValueError, match="fits 39 bytes: the least is 40, with 12"):
        accumulation.best_num_microbatches(12, 39, peaks.get)
