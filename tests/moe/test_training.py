"""A few steps of the chapter's training runs; the collapse itself is measured in the notebook."""

import pytest
import torch

from pedagogy.moe import (
    MoELayer,
    dense_gpt,
    equal_compute,
    load_shares,
    mixture_gpt,
    moe_layers,
    switch_loss,
    train,
)
from pedagogy.moe.training import BATCH, SIZES, Training
from pedagogy.workloads import text_batch


def test_a_run_notes_the_loss_and_the_load_of_every_step():
    run = train(mixture_gpt(3), 4, 0.01)
    assert run.losses.shape == (4,)
    assert run.losses.isfinite().all()
    assert run.loads.sum(1).tolist() == [BATCH * SIZES["sequence"]] * 4
    dense = train(dense_gpt(), 4)
    assert dense.loads.shape == (4, 0)
    assert all((run.losses[-1] < run.losses[0], dense.losses[-1] < dense.losses[0]))


def test_the_first_step_is_that_of_adam_on_the_loss_and_the_weighted_balancing_loss():
    trained = train(mixture_gpt(3), 1, 0.5, learning_rate=0.02)
    model = mixture_gpt(3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    loss = model.loss(*text_batch(BATCH, SIZES["sequence"], seed=0, step=0))
    (layer,) = moe_layers(model)
    balance = switch_loss(layer.last.probabilities, layer.last.experts)
    (loss + 0.5 * balance).backward()
    optimizer.step()
    assert trained.losses.item() == loss.item()  # without the balancing loss
    pairs = zip(trained.model.parameters(), model.parameters(), strict=True)
    for mine, right in pairs:
        torch.testing.assert_close(mine, right)


def test_the_balancing_loss_takes_from_the_fullest_expert():
    plain, balanced = (load_shares(train(mixture_gpt(8), 40, w), last=5) for w in (0.0, 0.1))
    assert balanced.max() < 0.8 * plain.max()
    assert (balanced > 0).sum() > (plain > 0).sum()


def test_equal_seeds_are_equal_runs():
    runs = [train(mixture_gpt(3, seed=1), 2, seed=1).losses for _ in range(2)]
    assert torch.equal(*runs)
    assert not torch.equal(runs[0], train(mixture_gpt(3, seed=2), 2, seed=1).losses)


def test_the_mixture_and_the_dense_model_differ_in_one_layer():
    dense, mixed = dense_gpt(), mixture_gpt(3)
    assert type(mixed.blocks[1].feed_forward) is MoELayer
    names = {n for n, _ in dense.named_parameters() if "blocks.1.feed_forward." not in n}
    same = dict(mixed.named_parameters())
    assert all(torch.equal(dense.get_parameter(name), same[name]) for name in names)
    assert {n for n in same if "blocks.1.feed_forward." not in n} == names


def test_shares_are_those_of_the_last_steps():
    loads = torch.tensor([[9, 0], [1, 3], [2, 2]])
    assert load_shares(Training(None, None, loads), last=2).tolist() == [3 / 8, 5 / 8]


def test_equal_compute_trains_both_once_for_each_seed():
    runs = equal_compute([0, 1], 2)
    assert {name: [len(losses) for losses in each] for name, each in runs.items()} == {
        "dense": [2, 2],
        "8 experts": [2, 2],
    }
    assert not torch.equal(*runs["dense"])


def test_a_run_without_steps_is_refused():
    for how in ({"steps": 0}, {"steps": 1, "warmup": 0}):
        with pytest.raises(ValueError, match="both must be 1 or more"):
            train(dense_gpt(), **how)
