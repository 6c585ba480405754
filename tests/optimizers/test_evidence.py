"""What chapter 10 shows as evidence: the same training for all, true moments, recorded curves."""

import pytest
import torch

from pedagogy.costs import published
from pedagogy.costs.optimizers import gpt_shapes
from pedagogy.costs.optimizers import state_bytes as predicted_bytes
from pedagogy.optimizers import evidence, state_bytes
from pedagogy.optimizers.evidence import MATRICES, RUNS, SIZES, train


@pytest.fixture(scope="module")
def gradients():
    return evidence.record_gradients(steps=12)


def test_every_run_starts_with_the_same_loss_and_lowers_it():
    runs = {name: train(make, 6).losses for name, make in RUNS.items()}
    assert len({losses[0].item() for losses in runs.values()}) == 1
    assert all(losses[-1] < losses[0] for losses in runs.values())
    other_seed = train(RUNS["Adam"], 1, seed=1).losses
    assert other_seed[0] != runs["Adam"][0]


@pytest.mark.parametrize("name", ["Adam", "Adafactor", "SM3", "Adam8bit"])
def test_the_state_of_the_gpt_is_what_its_shapes_predict(name):
    shapes = gpt_shapes(SIZES["layers"], SIZES["hidden"], 256, SIZES["sequence"])
    assert state_bytes(train(RUNS[name], 1).optimizer) == predicted_bytes(name, shapes)


def test_the_same_weights_are_told_from_others():
    mine = train(RUNS["Adam"], 3)
    assert evidence.same_weights(mine, train(lambda p: torch.optim.Adam(p, lr=2e-3), 3))
    assert not evidence.same_weights(mine, train(lambda p: torch.optim.Adam(p, lr=2.02e-3), 3))


def test_recorded_gradients_are_those_of_each_step(gradients):
    assert list(gradients) == list(MATRICES)
    assert {len(seen) for seen in gradients.values()} == {12}
    assert tuple(gradients["expand"][0].shape) == (256, 64)
    for seen in gradients.values():
        assert not torch.equal(seen[0], seen[-1])  # a copy, not the tensor that is written again
        assert all(bool(one.any()) for one in seen)


def test_both_moments_fade_alike_and_have_the_same_sums(gradients):
    for seen in gradients.values():
        true, factored = evidence.second_moments(seen)
        for dim in (0, 1):
            torch.testing.assert_close(factored.sum(dim), true.sum(dim), rtol=1e-4, atol=0)
    first, last = seen[0], seen[1]
    kept = 1 - 2**-0.8
    right = kept * first.square() + (1 - kept) * last.square()
    torch.testing.assert_close(evidence.second_moments(seen[:2]).true, right)
    with pytest.raises(ValueError, match="no gradient"):
        evidence.second_moments([])


def test_a_single_token_is_factored_exactly():
    square = torch.outer(torch.tensor([1.0, -2.0, 0.1]), torch.tensor([3.0, 0.5]))
    true, factored = evidence.second_moments([square])
    torch.testing.assert_close(factored, true)
    torch.testing.assert_close(evidence.best_rank_one(true), true)


def test_no_matrix_of_rank_one_is_nearer_than_the_best(gradients):
    for seen in gradients.values():
        true, factored = evidence.second_moments(seen)
        best = evidence.best_rank_one(true)
        errors = [evidence.relative_error(guess, true) for guess in (best, factored, true.mean())]
        assert 0 < errors[0] <= errors[1] < errors[2]
        assert torch.linalg.matrix_rank(best.double(), rtol=1e-5) == 1


def test_near_counts_both_sides_of_the_truth():
    true = torch.full((4,), 8.0)
    assert evidence.near_share(torch.tensor([4.0, 16.0, 3.9, 16.1]), true) == 0.5


def test_recorded_curves_are_of_every_run_and_say_how_they_were_made():
    curves = evidence.recorded_curves()
    assert list(curves) == list(RUNS)
    for losses in curves.values():
        assert losses.shape == (len(evidence.SEEDS), evidence.RECORDED_STEPS)
    assert "evidence.train" in evidence.provenance()
    end = {name: losses[:, -50:].mean(1) for name, losses in curves.items()}
    # what the chapter says of the picture, in each seed
    assert ((end["Adafactor"] - end["Adafactor unfactored"]).abs() < 0.01).all()
    assert (end["Adam"] < end["Adafactor"]).all()
    assert (end["Adafactor"] < end["Adam without m"]).all()
    assert (end["Adam without m"] < end["Adagrad"]).all()
    assert (end["Adagrad"] < end["SM3"]).all()
    assert ((end["Adam8bit"] - end["Adam"]).abs() < 0.05).all()
    assert losses_at(curves, "Adafactor", 25).min() > losses_at(curves, "SM3", 25).max()


def losses_at(curves, name, step):
    return curves[name][:, step - 5 : step + 5].mean(1)


def test_unfactored_is_adafactor_with_a_number_for_each_element():
    weight = torch.nn.Parameter(torch.randn(3, 4, generator=torch.Generator().manual_seed(0)))
    right = torch.nn.Parameter(weight.detach().flatten().clone())
    mine, flat = evidence.Unfactored([weight]), evidence.Adafactor([right])
    for _ in range(3):
        weight.grad = weight.detach().cos()
        right.grad = right.detach().cos()
        mine.step()
        flat.step()
    assert torch.equal(weight.flatten(), right)
    assert state_bytes(mine) == 4 * 12
    factored = train(RUNS["Adafactor"], 1).optimizer
    assert state_bytes(train(RUNS["Adafactor unfactored"], 1).optimizer) > state_bytes(factored)


def test_curves_are_recorded_as_they_are_read(tmp_path, monkeypatch):
    path = tmp_path / "curves.csv"
    monkeypatch.setattr(evidence, "RUNS", {"Adam": RUNS["Adam"]})
    evidence.record_curves(path, seeds=(0, 1), steps=2)
    how, *rows = path.read_text().splitlines()
    assert "seeds [0, 1]" in how
    assert [row.split(",")[:2] for row in rows] == [["Adam", "0"], ["Adam", "1"]]
    losses = train(RUNS["Adam"], 2, seed=1).losses
    assert [float(x) for x in rows[1].split(",")[2:]] == pytest.approx(losses.tolist(), abs=1e-4)


def test_the_papers_saved_memory_is_six_bytes_a_weight():
    rows = {row["row"]: row for row in published.table("adam8bit_tables").rows}
    for name, weights in (
        ("LM Transformer-1.5B ppl", 1.5e9),
        ("GLUE RoBERTa-Large AdamW", 355e6),
    ):
        shape = [(int(weights),)]
        saved = predicted_bytes("Adam", shape) - predicted_bytes("Adam8bit", shape)
        printed = float(rows[name]["d"].split()[0]) * 1e9
        assert saved == pytest.approx(printed, rel=0.1)
