"""Cases from issue trackers, each a test under its name: executing pipelines."""

import math
import sys
import time

import cloudpickle
import pytest
import torch
from torch import nn
from torch.nn import functional

from pedagogy.data_parallel import average_in_buckets, make_buckets
from pedagogy.pipeline import (
    DeferredBatchNorm,
    Stage,
    gpipe,
    interleaved,
    interleaved_in_rounds,
    one_f_one_b,
    run_schedule,
    split_batch,
    zero_bubble_h1,
)
from pedagogy.pipeline.schedule import Layout
from pedagogy.ranks import HangError, RankError, grid, launch
from tests.equality import (
    TIED_GPT,
    Problem,
    adamw,
    assert_equal_to_one_process,
    differences,
    one_process,
    token_loss,
)
from tests.pipeline.training import (
    CHAIN,
    DEEP_GPT,
    own_stages,
    train,
    train_all,
    typed,
)

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def never(group):
    raise AssertionError("a process was started")


# --- tied weights ----------------------------------------------------------------------------


def copies_of_the_tied_weight(group, schedule):
    """The copies after building, and after 3 steps."""
    layout, model = Layout(schedule), DEEP_GPT.model(group.rank)  # other weights on each rank
    stages, (tied,) = own_stages(group, layout, model)
    built = model.token.weight.detach().clone()
    optimizer = DEEP_GPT.make_optimizer(nn.ModuleList(stages.values()).parameters())
    for step in range(3):
        x, y = (split_batch(part, layout.num_microbatches) for part in DEEP_GPT.batch(step))
        run_schedule(group, schedule, stages, x, y, token_loss)
        tied.sum_gradients()
        optimizer.step()
        optimizer.zero_grad()
    return built, model.token.weight.detach()


@pytest.mark.parametrize("schedule", [gpipe(2, 4), interleaved(4, 4, 2)], ids=["p=2", "p=4, v=2"])
def test_C12_copies_of_a_tied_embedding_start_equal_and_stay_equal(schedule):
    run = launch(copies_of_the_tied_weight, len(schedule), schedule)
    for first, last in zip(run[0], run[-1], strict=True):
        assert torch.equal(first, last)
    assert torch.equal(run[0][0], DEEP_GPT.model(0).token.weight)
    assert not torch.equal(*run[0])


@pytest.mark.parametrize("schedule", [gpipe(2, 4), interleaved(4, 4, 2)], ids=["p=2", "p=4, v=2"])
def test_C12_a_tied_embedding_equals_one_process_though_each_rank_drew_its_copy(schedule):
    assert_equal_to_one_process(train, DEEP_GPT, len(schedule), schedule)


def test_C12_a_v_shape_has_both_uses_on_one_rank_and_reduces_nothing():
    schedule = typed(
        "F0@0 F1@0 F0@3 B0@3 F1@3 B1@3 B0@0 B1@0",
        "F0@1 F0@2 F1@1 F1@2 B0@2 B0@1 B1@2 B1@1",
    )
    run = launch(train, 2, TIED_GPT, 3, schedule)
    assert differences(one_process(TIED_GPT), list(run), TIED_GPT.dtype) == []
    assert {event.kind for event in run.trace} == {"send", "recv", "F", "B"}


# --- BatchNorm --------------------------------------------------------------------------------


def norm_of(norm, microbatches):
    """Outputs and running statistics of a BatchNorm stage that ran these micro-batches."""
    stage = Stage(norm)
    outputs = [stage.forward(k, x, lambda y: y) for k, x in enumerate(microbatches)]
    return torch.cat(outputs).flatten(), norm.running_mean.item(), norm.running_var.item()


def test_C25_deferred_batch_norm_counts_the_batch_once():
    x = split_batch(torch.tensor([[0.0], [2.0], [4.0], [6.0]], dtype=torch.float64), 2)

    def norm():
        return nn.BatchNorm1d(1, eps=1e-12, dtype=torch.float64)

    outputs, mean, variance = norm_of(norm(), x)
    assert outputs.tolist() == pytest.approx([-1, 1, -1, 1])
    assert (mean, variance) == pytest.approx((0.59, 1.19))
    outputs, mean, variance = norm_of(DeferredBatchNorm(norm(), 2), x)
    assert outputs.tolist() == pytest.approx([-1, 1, -1, 1])
    assert (mean, variance) == pytest.approx((0.3, 0.9 + 0.1 * 20 / 3))
    whole = norm()
    whole(torch.cat(x))
    assert (mean, variance) == pytest.approx((whole.running_mean.item(), whole.running_var.item()))


# --- numbers of micro-batches -----------------------------------------------------------------


def test_C54_microbatches_that_do_not_fit_the_interleaved_schedule_start_no_process():
    assert Layout(interleaved(4, 8, 2)).num_microbatches == 8
    for m, nearest in {6: "4 or 8", 10: "8 or 12", 9: "8 or 12", 3: "4"}.items():
        with pytest.raises(ValueError, match=f"multiple of 4, for example {nearest}$"):
            launch(never, 4, interleaved(4, m, 2))
    for m in (8, 6, 10, 3):
        assert Layout(interleaved_in_rounds(4, m, 2)).num_microbatches == m
    with pytest.raises(ValueError, match="9 micro-batches on 4 ranks"):
        launch(never, 4, interleaved_in_rounds(4, 9, 2))


def test_C54_what_the_flexible_rule_allows_runs_and_equals_one_process():
    cases = {m: interleaved_in_rounds(4, m, 2) for m in (3, 6, 8, 10)}
    run = launch(train_all, 4, CHAIN, 3, cases)
    expected = one_process(CHAIN)
    for m in cases:
        assert differences(expected, [rank[m] for rank in run], CHAIN.dtype) == []


def test_C55_fewer_microbatches_than_stages_run_and_equal_one_process():
    cases = {m: one_f_one_b(4, m) for m in (2, 1)}
    assert [str(action) for action in cases[2][0]] == ["F0@0", "F1@0", "B0@0", "B1@0"]
    run = launch(train_all, 4, CHAIN, 3, cases)
    expected = one_process(CHAIN)
    for m in cases:
        assert differences(expected, [rank[m] for rank in run], CHAIN.dtype) == []


def test_C55_a_batch_smaller_than_its_microbatches_is_refused_and_an_uneven_one_is_not():
    with pytest.raises(ValueError, match="batch of 2 cannot be split into 4 micro-batches"):
        split_batch(torch.zeros(2), 4)
    assert [len(part) for part in split_batch(torch.zeros(8), 3)] == [3, 3, 2]


def mean_gradient(group, m):
    """The gradient of w in mean(w x) over x = 1..8, through an identity on the first rank."""
    x = torch.arange(1.0, 9.0).unsqueeze(1)
    last = nn.Linear(1, 1, bias=False)
    stages = {0: nn.Linear(1, 1), 1: last}
    with torch.no_grad():
        stages[0].weight.fill_(1.0), stages[0].bias.zero_()
    run_schedule(
        group, gpipe(2, m), stages, split_batch(x, m), split_batch(x, m), lambda y, _: y.mean()
    )
    return last.weight.grad, stages[0].weight.grad


def test_C56_uneven_microbatches_are_weighted_by_their_samples():
    first, second = launch(mean_gradient, 2, 3)
    assert second[0].item() == pytest.approx(4.5)
    assert first[0] is None


def gradient_norms(group, p, sizes):
    """The norm of the whole gradient, and the loss that was reported, for each m."""
    found = {}
    for m in sizes:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(32, 7, generator=generator, dtype=torch.float64)
        y = torch.randint(3, (32,), generator=generator)
        stages, _ = own_stages(group, Layout(one_f_one_b(p, m)), UNTIED.model())
        run = run_schedule(
            group, one_f_one_b(p, m), stages, split_batch(x, m), split_batch(y, m),
            functional.cross_entropy,
        )  # fmt: skip
        own = nn.ModuleList(stages.values()).parameters()
        squares = sum((q.grad**2).sum() for q in own if q.grad is not None)
        found[m] = torch.as_tensor(squares), run.loss
    return found


def untied_chain():
    model = CHAIN.make_model()
    model.layers[6] = nn.Linear(5, 5, bias=False)
    return model


UNTIED = Problem("untied chain", untied_chain, adamw, CHAIN.batch, functional.cross_entropy)


def test_C57_the_gradient_does_not_depend_on_the_number_of_microbatches_or_stages():
    norms, losses = [], []
    for p in (1, 2, 4):
        run = launch(gradient_norms, p, p, (4, 16))
        for m in (4, 16):
            norms.append(math.sqrt(sum(rank[m][0].item() for rank in run)))
            losses.append(run[-1][m][1].item())
            assert all(rank[m][1] is None for rank in list(run)[:-1])
    assert norms == pytest.approx([norms[0]] * 6, rel=1e-12)
    model, generator = UNTIED.model(), torch.Generator().manual_seed(0)
    x = torch.randn(32, 7, generator=generator, dtype=torch.float64)
    alone = functional.cross_entropy(model(x), torch.randint(3, (32,), generator=generator))
    alone.backward()
    squares = sum((q.grad**2).sum() for q in model.parameters() if q.grad is not None)
    assert norms[0] == pytest.approx(math.sqrt(squares.item()), rel=1e-12)
    assert losses == pytest.approx([alone.item()] * 6, rel=1e-12)


# --- messages ---------------------------------------------------------------------------------


def test_C59_neighbours_that_send_at_the_same_time_do_not_wait_for_each_other():
    for p in (2, 4):
        cases = {"1F1B": one_f_one_b(p, 8), "interleaved": interleaved(p, 8, 2)}
        run = launch(train_all, p, CHAIN, 3, cases, timeout=20)
        expected = one_process(CHAIN)
        for name in cases:
            assert differences(expected, [rank[name] for rank in run], CHAIN.dtype) == []


def sends_first(group):
    """The steady state of 1F1B, with sends that block: forward to 1, backward to 0."""
    other, x = 1 - group.rank, torch.zeros(10)
    group.send(x, other)
    group.recv(other)


def test_C59_blocking_sends_dead_lock_and_the_hang_is_explained_within_ten_seconds():
    start = time.monotonic()
    with pytest.raises(HangError, match=r"dead-lock: every rank waits for another \(0 -> 1 -> 0\)"):
        launch(sends_first, 2)
    assert time.monotonic() - start < 10


def test_C59_a_schedule_that_would_dead_lock_is_refused_before_anything_is_sent():
    wrong = gpipe(2, 2)
    wrong[0] = [wrong[0][0], wrong[0][2], wrong[0][1], wrong[0][3]]  # F0 B0 F1 B1
    wrong[1] = [wrong[1][0], wrong[1][1], wrong[1][2], wrong[1][3]]  # F0 F1 B0 B1

    def worker(group):
        run_schedule(group, wrong, {group.rank: nn.Identity()}, [], [], torch.sub)

    with pytest.raises(RankError, match="rank 0 stands at"):
        launch(worker, 2)


class Skips(nn.Module):
    """A stage that hands on its input as well, for a stage further on."""

    def forward(self, x):
        return x + 1, x


def test_C60_a_connection_that_skips_a_stage_is_refused_not_waited_for():
    def worker(group):
        stages = {group.rank: Skips() if group.rank == 0 else nn.Identity()}
        batch = split_batch(torch.zeros(4, 1), 2)
        run_schedule(group, gpipe(3, 2), stages, batch, batch, functional.mse_loss)

    start = time.monotonic()
    with pytest.raises(RankError, match=r"must hand one tensor to the next.*tuple"):
        launch(worker, 3)
    assert time.monotonic() - start < 10


# --- state ------------------------------------------------------------------------------------


def test_C61_a_stage_keeps_state_by_microbatch_and_frees_it_on_use():
    stage = Stage(nn.Linear(2, 2))
    x = [torch.full((1, 2), float(k + 1)).requires_grad_() for k in range(3)]
    for k in range(3):
        stage.forward(k, x[k], lambda y: y)
    assert stage.in_flight == 3
    for k in (2, 0, 1):  # not the order of the forwards
        gradient = stage.backward(k, torch.full((1, 2), 10.0**k))
        expected = 10.0**k * stage.module.weight.sum(0, keepdim=True)
        torch.testing.assert_close(gradient, expected.detach())
    right = sum(10.0**k * (k + 1) for k in range(3))
    torch.testing.assert_close(stage.module.weight.grad, torch.full((2, 2), right))
    assert stage.held == {}
    for gone in (1, 3):
        with pytest.raises(KeyError, match=str(gone)):
            stage.backward(gone, torch.ones(1, 2))


def test_C61_the_halves_of_a_backward_are_kept_by_microbatch():
    cases = {"zero-bubble": zero_bubble_h1(3, 4), "interleaved": interleaved(3, 6, 2)}
    run = launch(train_all, 3, CHAIN, 3, cases)
    expected = one_process(CHAIN)
    for name in cases:
        assert differences(expected, [rank[name] for rank in run], CHAIN.dtype) == []


# --- replicas of a pipeline -------------------------------------------------------------------


def two_by_two(group, m):
    """Two pipelines of two stages; gradients, and the events since the start of the step."""
    axes = grid(group, dp=2, pp=2)
    schedule, model = one_f_one_b(2, m), UNTIED.model()
    stages, _ = own_stages(axes["pp"], Layout(schedule), model)
    x, y = (part.chunk(2)[axes["dp"].rank] for part in UNTIED.batch(0))
    before = len(group.events)
    run_schedule(axes["pp"], schedule, stages, split_batch(x, m), split_batch(y, m), UNTIED.loss)
    average_in_buckets(axes["dp"], make_buckets(nn.ModuleList(stages.values()).parameters()))
    events = group.events[before:]
    held = {id(parameter) for stage in stages.values() for parameter in stage.parameters()}
    named = [(n, p) for n, p in model.named_parameters() if id(p) in held and p.requires_grad]
    return {name: parameter.grad for name, parameter in named}, events


@pytest.mark.parametrize("m", [4, 1])
def test_C62_each_rank_of_a_grid_reduces_once_after_its_own_last_backward(m):
    alone = UNTIED.model()
    x, y = UNTIED.batch(0)
    UNTIED.loss(alone(x), y).backward()
    expected = {n: q.grad for n, q in alone.named_parameters() if q.grad is not None}
    found = set()
    for gradients, events in launch(two_by_two, 4, m):
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, expected[name], rtol=1e-10, atol=1e-12)
        found |= gradients.keys()
        (reduced,) = [event for event in events if event.kind == "all_reduce"]
        backwards = [event for event in events if event.kind == "B"]
        assert len(backwards) == m
        assert reduced.start >= max(event.end for event in backwards)
    assert found == expected.keys()
