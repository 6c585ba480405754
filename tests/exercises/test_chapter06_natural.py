"""Chapter 06: more answers as readers write them; the large batch itself is not an answer."""

from __future__ import annotations

import sys

import cloudpickle
import pytest
import torch

from pedagogy.exercises import engine
from pedagogy.exercises.chapter06 import ACCUMULATE, accumulate_gradients
from pedagogy.exercises.chapter06_ranks import ON_RANKS
from pedagogy.exercises.chapter06_windows import WINDOWS

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def joined(microbatches):
    """All items as one micro-batch."""
    return tuple(map(torch.cat, zip(*microbatches, strict=True)))


def the_large_batch(model, microbatches, loss_sum, count):
    model.zero_grad()
    batch = joined(microbatches)
    (loss_sum(model, batch) / max(count(batch), 1)).backward()


def by_hand(model, microbatches, loss_sum, count):
    total = max(sum(map(count, microbatches)), 1)
    parameters = list(model.parameters())
    added = [torch.zeros_like(parameter) for parameter in parameters]
    for microbatch in microbatches:
        found = torch.autograd.grad(loss_sum(model, microbatch), parameters)
        for sum_, gradient in zip(added, found, strict=True):
            sum_ += gradient / total
    for parameter, sum_ in zip(parameters, added, strict=True):
        parameter.grad = sum_


def an_update_too(model, *others):
    accumulate_gradients(model, *others)
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def forgets_to_clear(model, microbatches, loss_sum, count):
    items = 0
    for microbatch in microbatches:
        loss_sum(model, microbatch).backward()
        items += count(microbatch)
    for parameter in model.parameters():
        parameter.grad /= max(items, 1)


def clears_in_the_loop(model, microbatches, loss_sum, count):
    for microbatch in microbatches:
        model.zero_grad()
        (loss_sum(model, microbatch) / count(microbatch)).backward()


def clears_last(model, *others):
    accumulate_gradients(model, *others)
    model.zero_grad()


def items_so_far(model, microbatches, loss_sum, count):
    model.zero_grad()
    items = 0
    for microbatch in microbatches:
        items += count(microbatch)
        (loss_sum(model, microbatch) / items).backward()


def loss_so_far(model, microbatches, loss_sum, count):
    model.zero_grad()
    total, loss = max(sum(map(count, microbatches)), 1), 0
    for microbatch in microbatches:
        loss = loss + loss_sum(model, microbatch) / total
        loss.backward(retain_graph=True)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (by_hand, "correct"),
        (the_large_batch, "live at once"),
        (an_update_too, "the weights have changed"),
        (forgets_to_clear, "What stood in .grad before"),
        (clears_in_the_loop, "those of the last remain alone"),
        (clears_last, "cleared at the end"),
        (items_so_far, "Divided by the items seen so far"),
        (loss_so_far, "the sum so far"),
    ],
)
def test_sums_are_explained(answer, says):
    assert says.lower() in engine.explain(ACCUMULATE, answer).lower()


def windows(microbatches, window):
    return [microbatches[i : i + window] for i in range(0, len(microbatches), window)]


def large_windows(model, optimizer, microbatches, window, *others):
    for here in windows(microbatches, window):
        the_large_batch(model, here, *others)
        optimizer.step()


def never_clears(model, optimizer, microbatches, window, *others):
    for here in windows(microbatches, window):
        forgets_to_clear(model, here, *others)
        optimizer.step()


def clears_before_the_step(model, optimizer, microbatches, window, *others):
    for here in windows(microbatches, window):
        accumulate_gradients(model, here, *others)
        optimizer.zero_grad()
        optimizer.step()


def one_at_a_time(model, optimizer, microbatches, window, *others):
    for index, microbatch in enumerate(microbatches):
        accumulate_gradients(model, [microbatch], *others)
        if (index + 1) % window == 0 or index + 1 == len(microbatches):
            optimizer.step()


def own_sgd(model, optimizer, microbatches, window, *others):
    for here in windows(microbatches, window):
        accumulate_gradients(model, here, *others)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= optimizer.param_groups[0]["lr"] * parameter.grad


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (large_windows, "live at once"),
        (never_clears, "earlier windows are still in .grad"),
        (clears_before_the_step, "cleared before the step"),
        (one_at_a_time, "an update sees the last one alone"),
        (own_sgd, "nothing calls optimizer.step()"),
    ],
)
def test_windows_are_explained(answer, says):
    assert says.lower() in engine.explain(WINDOWS, answer).lower()


def in_one_message(group, model, microbatches, loss_sum, count):
    """The number of items behind the gradients, all divided at the end."""
    parameters, items = list(model.parameters()), 0
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    for microbatch in microbatches:
        loss_sum(model, microbatch).backward()
        items += count(microbatch)
    parts = [p.grad.flatten() for p in parameters] + [torch.tensor([float(items)])]
    *sums, items = group.all_reduce(torch.cat(parts)).split([len(part) for part in parts])
    for parameter, total in zip(parameters, sums, strict=True):
        parameter.grad = total.view_as(parameter) / max(items.item(), 1)


def test_one_message_for_gradients_and_items_is_accepted():
    assert engine.explain(ON_RANKS, in_one_message).startswith(engine.CORRECT)


def first_and_not_last(group, model, microbatches, loss_sum, count):
    total = max(int(group.all_reduce(torch.tensor(sum(map(count, microbatches))))), 1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for index, microbatch in enumerate(microbatches or [None]):
        if microbatch is not None:
            (loss_sum(model, microbatch) / total).backward()
        if index == 0:
            for parameter in model.parameters():
                group.all_reduce_(parameter.grad)


def mean_of_items(group, model, microbatches, loss_sum, count):
    items = torch.tensor(float(sum(map(count, microbatches))))
    total = max(group.all_reduce(items, "mean").item(), 1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for microbatch in microbatches:
        (loss_sum(model, microbatch) / total).backward()
    for parameter in model.parameters():
        group.all_reduce_(parameter.grad)


@pytest.mark.parametrize(
    ("answer", "begins"),
    [
        (first_and_not_last, "The ranks sum after the first micro-batch"),
        (mean_of_items, "The number of items is averaged"),
    ],
)
def test_C06_ranks_are_explained(answer, begins):
    mistake = next(one for one, why in ON_RANKS.mistakes if why.startswith(begins))
    mine, known = engine.judge(ON_RANKS, answer), engine.known_verdict(ON_RANKS, mistake)
    assert mine.kind == known.kind == "value"
    assert engine._same(mine, known, ON_RANKS.tolerance)
