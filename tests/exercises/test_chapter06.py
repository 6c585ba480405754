"""Chapter 06: the references are what one large batch gives; answers as readers write them."""

from __future__ import annotations

import sys
from itertools import chain, pairwise

import cloudpickle
import pytest
import torch

from pedagogy.accumulation import GradientAccumulator, accumulate
from pedagogy.exercises import engine, prediction
from pedagogy.exercises.chapter06 import ACCUMULATE, CASES
from pedagogy.exercises.chapter06_cases import count, fresh_model, gradients, loss_sum
from pedagogy.exercises.chapter06_predictions import FIRST, IGNORED_LABELS, MEAN, UPDATES
from pedagogy.exercises.chapter06_ranks import CASES as RANK_CASES
from pedagogy.exercises.chapter06_ranks import ON_RANKS
from pedagogy.exercises.chapter06_windows import WINDOWS

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def values_of(exercise):
    """What the reference returns: [rank][case]."""
    verdict = engine.known_verdict(exercise, exercise.reference)
    assert verdict.kind == "correct"
    return verdict.outcome.value


def gradient_of_the_large_batch(microbatches):
    """All in one forward; 0 where no item counts."""
    model = fresh_model(microbatches)
    together = tuple(torch.cat(parts) for parts in zip(*microbatches, strict=True))
    (loss_sum(model, together) / max(count(together), 1)).backward()
    return gradients(model)


def test_C04_five_tokens_have_the_mean_2_and_not_3_5():
    (first, *_) = values_of(ACCUMULATE)[0]
    assert first["the gradients"][0].item() == 2
    assert prediction.judge(MEAN, 2).startswith("correct")
    assert "mean of the two means" in prediction.judge(MEAN, 3.5)


def test_a_batch_in_pieces_has_the_gradient_of_the_whole():
    for answer, microbatches in zip(values_of(ACCUMULATE)[0], CASES.values(), strict=True):
        torch.testing.assert_close(
            answer["the gradients"], gradient_of_the_large_batch(microbatches)
        )


def test_C08_labels_that_are_ignored_leave_the_mean_at_1_on_both_ranks():
    (case,) = (i for i, label in enumerate(RANK_CASES) if "every label ignored" in label)
    assert [rank[case]["the gradients"][0].item() for rank in values_of(ON_RANKS)] == [1, 1]
    assert prediction.judge(IGNORED_LABELS, "nan").startswith("correct")


def test_C06_ranks_that_sum_the_first_and_not_the_last_part():
    assert prediction.judge(FIRST, [4, 7]).startswith("correct")
    assert "that is right" in prediction.judge(FIRST, [5.5, 5.5])


def test_ranks_have_the_gradient_of_the_whole():
    for rank in values_of(ON_RANKS):
        for answer, of_ranks in zip(rank, RANK_CASES.values(), strict=True):
            want = gradient_of_the_large_batch(list(chain(*of_ranks)))
            torch.testing.assert_close(answer["the gradients"], want)


def test_C07_the_last_window_is_divided_by_what_it_holds():
    (first, *_) = values_of(WINDOWS)[0]
    weights = [weight.item() for (weight,) in first["the weights after each update"]]
    assert first["the number of updates"] == 3
    assert [b - a for a, b in pairwise(weights)] == pytest.approx([-1, -1])
    assert prediction.judge(UPDATES, [3, -3]).startswith("correct")
    assert "divided by 1" in prediction.judge(UPDATES, [3, -2.5])


# --- answers as a reader would write them ---------------------------------------------------------


def of_the_package(model, microbatches, loss_sum, count):
    accumulate(model, microbatches, loss_sum, count)


def counted_on_the_way(model, microbatches, loss_sum, count):
    model.zero_grad()
    items = 0
    for microbatch in microbatches:
        loss_sum(model, microbatch).backward()
        items += count(microbatch)
    for parameter in model.parameters():
        parameter.grad /= max(items, 1)


def empty_ones_left_out(model, microbatches, loss_sum, count):
    model.zero_grad()
    total = sum(map(count, microbatches))
    for microbatch in microbatches:
        if count(microbatch):
            (loss_sum(model, microbatch) / total).backward()


def as_trainers_did(model, microbatches, loss_sum, count):
    model.zero_grad()
    for microbatch in microbatches:
        loss = loss_sum(model, microbatch) / count(microbatch)
        (loss / len(microbatches)).backward()


def one_loss(model, microbatches, loss_sum, count):
    model.zero_grad()
    total = sum(map(count, microbatches))
    loss = sum(loss_sum(model, microbatch) for microbatch in microbatches)
    (loss / max(total, 1)).backward()


def not_cleared(model, microbatches, loss_sum, count):
    total = sum(count(microbatch) for microbatch in microbatches)
    for microbatch in microbatches:
        (loss_sum(model, microbatch) / max(1, total)).backward()


def returned(model, microbatches, loss_sum, count):
    return 2.0


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (of_the_package, "correct"),
        (counted_on_the_way, "correct"),
        (empty_ones_left_out, "correct"),
        (as_trainers_did, "mean of the micro-batches' means"),
        (one_loss, "live at once"),
        (not_cleared, "What stood in .grad before"),
        (returned, "it returns something"),
    ],
)
def test_sums_are_explained(answer, says):
    assert says.lower() in engine.explain(ACCUMULATE, answer).lower()


def accumulator(model, optimizer, microbatches, window, loss_sum, count):
    accumulator = GradientAccumulator(model, optimizer, window, loss_sum, count)
    for microbatch in microbatches:
        accumulator.add(microbatch)
    accumulator.finish()


def as_in_tutorials(model, optimizer, microbatches, window, loss_sum, count):
    optimizer.zero_grad()
    for i, microbatch in enumerate(microbatches):
        loss = loss_sum(model, microbatch) / count(microbatch)
        (loss / window).backward()
        if (i + 1) % window == 0:
            optimizer.step()
            optimizer.zero_grad()


def with_a_rest(model, optimizer, microbatches, window, loss_sum, count):
    optimizer.zero_grad()
    for i, microbatch in enumerate(microbatches):
        (loss_sum(model, microbatch) / max(count(microbatch), 1) / window).backward()
        if (i + 1) % window == 0 or i + 1 == len(microbatches):
            optimizer.step()
            optimizer.zero_grad()


def from_index_0(model, optimizer, microbatches, window, loss_sum, count):
    optimizer.zero_grad()
    items = 0
    for i, microbatch in enumerate(microbatches):
        loss_sum(model, microbatch).backward()
        items += count(microbatch)
        if i % window == 0 or i == len(microbatches) - 1:
            for parameter in model.parameters():
                parameter.grad /= max(items, 1)
            optimizer.step()
            optimizer.zero_grad()
            items = 0


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (accumulator, "correct"),
        (as_in_tutorials, "which is not full, is dropped"),
        (with_a_rest, "also in the last window"),
        (from_index_0, "index % window == 0 is true at index 0"),
    ],
)
def test_windows_are_explained(answer, says):
    assert says in engine.explain(WINDOWS, answer)


def package_on_ranks(group, model, microbatches, loss_sum, count):
    accumulate(model, microbatches, loss_sum, count, group)


def averaged_each_time(group, model, microbatches, loss_sum, count):
    model.zero_grad()
    for microbatch in microbatches:
        (loss_sum(model, microbatch) / max(count(microbatch), 1) / len(microbatches)).backward()
        for parameter in model.parameters():
            group.all_reduce_(parameter.grad, "mean")


def all_in_one_each_time(group, model, microbatches, loss_sum, count):
    model.zero_grad()
    total = int(group.all_reduce(torch.tensor(sum(map(count, microbatches)))))
    for microbatch in microbatches:
        (loss_sum(model, microbatch) / total).backward()
        flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        group.all_reduce_(flat)


def means_of_ranks(group, model, microbatches, loss_sum, count):
    accumulate(model, microbatches, loss_sum, count)
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad = group.all_reduce(parameter.grad, "mean")


@pytest.mark.parametrize(
    ("answer", "begins", "kind"),
    [
        (averaged_each_time, "There is an all_reduce in every micro-batch", "raised"),
        (all_in_one_each_time, "There is an all_reduce in every micro-batch", "raised"),
        (means_of_ranks, "That is the mean of the ranks' means", "value"),
    ],
)
def test_ranks_are_explained(answer, begins, kind):
    mistake = next(one for one, why in ON_RANKS.mistakes[::-1] if why.startswith(begins))
    mine, known = engine.judge(ON_RANKS, answer), engine.known_verdict(ON_RANKS, mistake)
    assert mine.kind == known.kind == kind
    assert engine._same(mine, known, ON_RANKS.tolerance)


def test_accumulation_of_the_package_is_accepted_on_ranks():
    assert engine.explain(ON_RANKS, package_on_ranks).startswith(engine.CORRECT)
