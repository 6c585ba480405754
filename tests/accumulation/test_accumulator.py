"""An update after every window of micro-batches equals one process with the large batch."""

import sys

import cloudpickle
import pytest
import torch
from torch import nn

from pedagogy.accumulation import GradientAccumulator
from pedagogy.precision import MasterWeights
from pedagogy.ranks import launch
from tests.accumulation.batches import (
    Weight,
    assert_same,
    awkward,
    awkward_batches,
    gpt,
    gpt_batches,
    gradients,
    items,
    labels_of,
    mean_loss,
    summed,
    total,
)
from tests.equality import momentum

cloudpickle.register_pickle_by_value(sys.modules[__name__])

NUM_MICROBATCHES, WINDOW = 7, 2  # of each rank: four updates, the last of one micro-batch
MAX_NORM = 0.2


def weights(model):
    """By name."""
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def of_rank(rank, make_batches=awkward_batches):
    """A rank's micro-batches; the sizes differ between ranks, and some hold no label."""
    if make_batches is gpt_batches:
        return gpt_batches([1 + (rank + i) % 3 for i in range(NUM_MICROBATCHES)])
    sizes = [0 if i == 5 else 2 + (rank + i) % 3 for i in range(NUM_MICROBATCHES)]
    return awkward_batches(sizes, seed=1 + rank)


def train(group, make_model, make_batches, max_norm, accumulator=GradientAccumulator):
    """Losses, weights and how many events there were after each micro-batch."""
    model = make_model()
    optimizer = momentum(model.parameters())
    trainer = accumulator(model, optimizer, WINDOW, summed, labels_of, group, max_norm)
    losses, states, events = [], [], []
    for call in [
        *(lambda m=m: trainer.add(m) for m in of_rank(group.rank, make_batches)),
        trainer.finish,
    ]:
        loss = call()
        events.append(len(group.events))
        if loss is not None:
            losses.append(loss)
            states.append(weights(model))
    return losses, states, events, trainer.num_steps, gradients(model)


def one_process(size, make_model, make_batches, max_norm):
    """The truth: all ranks' micro-batches of a window in one batch, PyTorch's mean and clipping."""
    model = make_model()
    optimizer = momentum(model.parameters())
    losses, states = [], []
    for start in range(0, NUM_MICROBATCHES, WINDOW):
        ranks = [of_rank(rank, make_batches)[start : start + WINDOW] for rank in range(size)]
        loss = mean_loss(model, [m for rank in ranks for m in rank])
        loss.backward()
        if max_norm:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        states.append(weights(model))
    return losses, states


CASES = [
    (awkward, awkward_batches, None),
    (awkward, awkward_batches, MAX_NORM),
    (gpt, gpt_batches, MAX_NORM),
]


def all_cases(group):
    """Every case, in one launch; and how many bytes the first one sent."""
    torch.set_num_threads(1)
    found, sent = [], []
    for case in CASES:
        before = len(group.events)
        found.append(train(group, *case))
        sent.append([event.nbytes for event in group.events[before:] if event.kind == "all_reduce"])
    return found, sent


@pytest.fixture(scope="module", params=[1, 2, 3])
def ran(request):
    """The world size, and what every rank saw."""
    return request.param, list(launch(all_cases, request.param))


@pytest.mark.parametrize("index", range(len(CASES)))
def test_four_updates_with_momentum_are_those_of_the_large_batch(ran, index):
    size, ranks = ran
    expected, states = one_process(size, *CASES[index])
    for found, _ in ranks:
        losses, mine, _, num_steps, left = found[index]
        assert num_steps == len(mine) == 4
        torch.testing.assert_close(losses, expected, rtol=1e-10, atol=1e-12)
        for state, right in zip(mine, states, strict=True):
            assert_same(state, right)
        assert set(left.values()) == {None}


def test_clipping_made_a_difference():
    _, free = one_process(2, *CASES[0])
    _, clipped = one_process(2, *CASES[1])
    assert not torch.equal(free[0]["leave.weight"], clipped[0]["leave.weight"])


def test_nothing_is_sent_before_a_window_is_full(ran):
    size, ranks = ran
    for found, _ in ranks:
        events = found[0][2]
        sent = [after - before for before, after in zip([events[0], *events], events, strict=False)]
        assert [n > 0 for n in sent] == [size > 1 and i % 2 == 1 for i in range(7)] + [size > 1]
        assert len(set(sent)) == (2 if size > 1 else 1)


def test_a_window_sends_every_gradient_once_the_number_of_items_and_the_loss(ran):
    size, ranks = ran
    model = awkward()
    trained = [p for p in model.parameters() if p.requires_grad]
    unused = sum(p.numel() for p in model.unused.parameters())
    gradient_bytes = 8 * (sum(p.numel() for p in trained) - unused)
    agreement = len(trained) + 8 + 8  # a byte for each parameter, the items, the loss
    for _, sent in ranks:
        window = 2 * (size - 1) / size * (gradient_bytes + agreement)
        assert sum(sent[0]) == pytest.approx(4 * window, abs=4 * len(sent[0]))
        assert sum(sent[1]) == sum(sent[0])  # clipping sends nothing


@pytest.mark.parametrize("window", [1, 2, 3, 5, 8])
def test_C07_five_micro_batches_of_gradient_1_move_w_by_one_for_each_update(window):
    model = Weight()
    trainer = GradientAccumulator(model, torch.optim.SGD([model.w], 1.0), window, total, len)
    losses = [trainer.add(items(1, 1)) for _ in range(5)]
    losses.append(trainer.finish())
    updates = -(-5 // window)
    assert trainer.num_steps == updates
    assert model.w.item() == -updates
    assert trainer.finish() is None
    assert [x.item() for x in losses if x is not None] == [-i for i in range(updates)]


def test_C07_a_window_without_items_does_not_divide_by_zero():
    model = Weight(3.0)
    trainer = GradientAccumulator(model, torch.optim.SGD([model.w], 1.0), 2, total, len, None, 1.0)
    losses = [trainer.add(items()), trainer.add(items()), trainer.add(items()), trainer.finish()]
    assert [x if x is None else x.item() for x in losses] == [None, 0, None, 0]
    assert model.w.item() == 3.0
    trainer.add(items(2))
    trainer.finish()
    assert model.w.item() == pytest.approx(2.0, abs=1e-6)  # the gradient of 2, clipped to 1


def test_C32_a_window_is_clipped_once_not_each_micro_batch():
    model = Weight()
    optimizer = torch.optim.SGD([model.w], 1.0)
    trainer = GradientAccumulator(model, optimizer, 2, total, len, max_norm=1.0)
    trainer.add(items(8.0))
    trainer.add(items(-7.0))  # the mean is 0.5; clipped one by one they would cancel
    assert model.w.item() == -0.5


def test_what_stood_in_the_gradients_before_is_not_part_of_the_first_window():
    model = Weight()
    model.w.grad = torch.tensor(100.0, dtype=torch.float64)
    trainer = GradientAccumulator(model, torch.optim.SGD([model.w], 1.0), 1, total, len)
    trainer.add(items(1.0))
    assert model.w.item() == -1


def test_with_master_weights_each_window_starts_from_nothing():
    model = Weight(1.0)
    optimizer = MasterWeights(torch.optim.SGD([model.w], 1 / 16), torch.float16)
    trainer = GradientAccumulator(model, optimizer, 2, total, len)
    for _ in range(6):
        trainer.add(items(1.0).half())
    assert model.w.item() == 1 - 3 / 16


def test_windows_counts_and_losses_that_cannot_be_right_are_refused():
    model = Weight()
    make = torch.optim.SGD([model.w], 1.0)
    with pytest.raises(ValueError, match="window of 0 micro-batches: must be 1 or more"):
        GradientAccumulator(model, make, 0, total, len)
    with pytest.raises(ValueError, match="-1 items in a micro-batch"):
        GradientAccumulator(model, make, 1, total, lambda x: -1).add(items(1))
    with pytest.raises(ValueError, match=r"shape \(2,\): it must sum"):
        GradientAccumulator(model, make, 1, lambda m, x: m(x), len).add(items(1, 2))
