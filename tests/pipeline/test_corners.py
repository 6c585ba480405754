"""Where a pipeline would go wrong without a word: each is refused, or right."""

import sys

import cloudpickle
import numpy
import pytest
import torch
from torch import nn

from pedagogy.pipeline import (
    Layout,
    RecomputingStage,
    SplitStage,
    StashingStage,
    TiedWeight,
    TwoVersionStage,
    VerticalSyncStage,
    defer_batch_norm,
    gpipe,
    naive,
    one_f_one_b,
    partition,
    partition_replicated,
    pipedream,
    pipedream_2bw,
    pipedream_replicated,
    replica_group,
    run_schedule,
    simulate,
    train_by_recursion,
    two_versions,
    vertical_sync,
    zero_bubble_h1,
)
from pedagogy.pipeline.partition import LayerCost
from pedagogy.ranks import RankError, launch

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def random(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def error(output, target):
    return ((output - target) ** 2).mean()


def linear(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(4, 4).double()


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.5)


def pieces(count, rows=3):
    return [random(k, rows, 4) for k in range(count)], [
        random(90 + k, rows, 4) for k in range(count)
    ]


def run_alone(schedule, stages, count, loss=error, inputs=None):
    xs, ys = pieces(count)
    return launch(_alone, 1, schedule, stages, inputs or xs, ys, loss)


def _alone(group, schedule, stages, xs, ys, loss):
    run_schedule(group, schedule, stages, xs, ys, loss)
    return {s: [p.grad for p in _module(stage).parameters()] for s, stage in stages.items()}


def _module(stage):
    return stage if isinstance(stage, nn.Module) else stage.module


# --- several schedules, one after the other -----------------------------------------------------


def three_calls(group, kind):
    stages = {
        "vertical sync": lambda: VerticalSyncStage(linear(group.rank), sgd, 2),
        "2BW": lambda: TwoVersionStage(linear(group.rank), sgd, 2),
    }
    stage = stages[kind]()
    schedule = pipedream(2, 6) if kind == "vertical sync" else pipedream_2bw(2, 3, 2)
    for _ in range(3):
        run_schedule(group, schedule, {group.rank: stage}, *pieces(6), error)
    return [p.detach() for p in stage.module.parameters()], stage.peak_versions


@pytest.mark.parametrize(
    ("kind", "version_of", "every"),
    [("vertical sync", vertical_sync(2), 1), ("2BW", two_versions(2), 2)],
)
def test_a_second_call_goes_on_where_the_first_ended(kind, version_of, every):
    run = launch(three_calls, 2, kind)
    modules = [linear(0), linear(1)]
    optimizer = sgd([p for module in modules for p in module.parameters()])
    for _ in range(3):  # momentum lives on, as it does in the stages
        history = train_by_recursion(
            modules, lambda _: optimizer, *pieces(6), error, version_of, every
        )
    found = [p for weights, _ in run for p in weights]
    for mine, right in zip(found, history[-1], strict=True):
        torch.testing.assert_close(mine, right, rtol=0, atol=1e-12)
    assert [versions for _, versions in run] == [2, 2]


def uneven_2bw(group):
    stage = TwoVersionStage(linear(group.rank), sgd, 2)
    xs = [random(k, 1 + 2 * (k % 2), 4) for k in range(6)]
    ys = [random(50 + k, 1 + 2 * (k % 2), 4) for k in range(6)]
    run_schedule(group, pipedream_2bw(2, 3, 2), {group.rank: stage}, xs, ys, error)
    history = train_by_recursion([linear(0), linear(1)], sgd, xs, ys, error, two_versions(2), 2)
    expected = history[-1][2 * group.rank : 2 * group.rank + 2]
    return [
        torch.allclose(p, q, atol=1e-12)
        for p, q in zip(stage.module.parameters(), expected, strict=True)
    ]


def test_2bw_weighs_uneven_micro_batches_by_their_samples():
    assert list(launch(uneven_2bw, 2)) == [[True, True]] * 2


# --- replicas -----------------------------------------------------------------------------------


def forget_replicas(group):
    stage = (0, 0, 1)[group.rank]
    stages = {stage: StashingStage(linear(stage), sgd)}
    run_schedule(group, pipedream_replicated([2, 1], 4), stages, *pieces(4), error)


def test_a_replicated_stage_without_its_group_is_refused():
    with pytest.raises(RankError, match="stage 0 has 2 replicas, but averages over 1"):
        launch(forget_replicas, 3)


def synchronous_replicas(group):
    """No update: the last stage on ranks 1 and 2, a micro-batch each."""
    schedule = [
        [("F", 0, 0), ("F", 0, 1), ("B", 0, 0), ("B", 0, 1)],
        [("F", 1, 0), ("B", 1, 0)],
        [("F", 1, 1), ("B", 1, 1)],
    ]
    stage = (0, 1, 1)[group.rank]
    module = linear(stage)
    xs, ys = [random(0, 3, 4), random(1, 1, 4)], [random(2, 3, 4), random(3, 1, 4)]
    run_schedule(group, schedule, {stage: module}, xs, ys, error)
    return [p.grad for p in module.parameters()]


def test_without_updates_a_replicated_last_stage_weighs_by_all_samples():
    first, one, other = launch(synchronous_replicas, 3)
    modules = [linear(0), linear(1)]
    x, y = (
        torch.cat([random(0, 3, 4), random(1, 1, 4)]),
        torch.cat([random(2, 3, 4), random(3, 1, 4)]),
    )
    error(modules[1](modules[0](x)), y).backward()
    for mine, right in zip(first, modules[0].parameters(), strict=True):
        torch.testing.assert_close(mine, right.grad)
    for a, b, right in zip(one, other, modules[1].parameters(), strict=True):
        torch.testing.assert_close(a + b, right.grad)


def uneven_round(group):
    stage = (0, 1, 1)[group.rank]
    schedule = pipedream_replicated([1, 2], 2)
    replicas = replica_group(group, Layout(schedule), stage)
    xs, ys = [random(0, 3, 4), random(1, 1, 4)], [random(2, 3, 4), random(3, 1, 4)]
    run_schedule(group, schedule, {stage: StashingStage(linear(), sgd, replicas)}, xs, ys, error)


def test_uneven_minibatches_in_a_round_of_replicas_are_refused():
    with pytest.raises(RankError, match="3 and 1 samples in one round of 2 replicas"):
        launch(uneven_round, 3)


class Sometimes(nn.Module):
    """Uses its second layer for some inputs only."""

    def __init__(self):
        super().__init__()
        self.always, self.seldom = linear(1), linear(2)

    def forward(self, x):
        return self.seldom(self.always(x)) if x[0, 0] > 0 else self.always(x)


def seldom_used(group):
    stage = (0, 0, 1)[group.rank]
    schedule = pipedream_replicated([2, 1], 2)
    replicas = replica_group(group, Layout(schedule), stage)
    module = Sometimes() if stage == 0 else linear(3)
    xs, ys = pieces(2)
    xs[0][0, 0], xs[1][0, 0] = 1.0, -1.0
    run_schedule(group, schedule, {stage: StashingStage(module, sgd, replicas)}, xs, ys, error)
    return [p.detach() for p in module.parameters()]


def test_replicas_stay_equal_where_one_has_no_gradient():
    one, other, _ = launch(seldom_used, 3)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# --- stages and schedules that do not fit -------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "stage", "message"),
    [
        (pipedream_2bw(1, 4, 2), TwoVersionStage(linear(), sgd, 4), r"needs \[3, 7\]"),
        (pipedream_2bw(1, 4, 2), VerticalSyncStage(linear(), sgd, 1), r"after .* \[1, 3, 5, 7\]"),
        (pipedream(1, 8), VerticalSyncStage(linear(), sgd, 3), "stage of 3 in a schedule of 1"),
    ],
)
def test_a_stage_that_does_not_fit_the_updates_is_refused(schedule, stage, message):
    with pytest.raises(RankError, match=message):
        run_alone(schedule, {0: stage}, 8)


def without_gradients(group):
    with torch.no_grad():
        run_schedule(group, gpipe(1, 2), {0: linear()}, *pieces(2), error)


def test_no_grad_and_a_detached_loss_are_refused():
    with pytest.raises(RankError, match="gradients are switched off"):
        launch(without_gradients, 1)
    with pytest.raises(RankError, match="the loss has no gradient"):
        run_alone(gpipe(1, 2), {0: linear()}, 2, lambda o, t: error(o, t).detach())
    with pytest.raises(RankError, match=r"the loss has shape \(3, 4\)"):
        run_alone(gpipe(1, 2), {0: linear()}, 2, lambda o, t: (o - t) ** 2)


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("kind", [None, RecomputingStage])
def test_a_stage_that_changes_its_input_in_place_is_refused(kind, place):
    modules = [linear(0), linear(1)]
    modules[place] = nn.Sequential(nn.ReLU(inplace=True), modules[place])
    stages = {s: kind(m) if kind else m for s, m in enumerate(modules)}
    schedule = [[("F", 0, 0), ("F", 1, 0), ("B", 1, 0), ("B", 0, 0)]]
    with pytest.raises(RankError, match="changed its input in place"):
        run_alone(schedule, stages, 1)


def test_a_recomputing_stage_may_return_its_input():
    schedule = [[("F", 0, 0), ("F", 1, 0), ("F", 2, 0), ("B", 2, 0), ("B", 1, 0), ("B", 0, 0)]]
    modules = [linear(0), nn.Identity(), linear(1)]
    (found,) = run_alone(schedule, {s: RecomputingStage(m) for s, m in enumerate(modules)}, 1)
    (x,), (y,) = pieces(1)
    whole = [linear(0), linear(1)]
    error(whole[1](whole[0](x)), y).backward()
    for s, module in ((0, whole[0]), (2, whole[1])):
        for mine, right in zip(found[s], module.parameters(), strict=True):
            torch.testing.assert_close(mine, right.grad)


def test_stages_that_hand_on_whole_numbers_and_lists_of_stages_are_refused():
    class Quantise(nn.Module):
        def forward(self, x):
            return x.long()

    with pytest.raises(RankError, match=r"returned torch\.int64"):
        run_alone(gpipe(1, 1), {0: Quantise()}, 1)
    with pytest.raises(RankError, match="stages is a list; give a dict"):
        launch(_list_of_stages, 1)


def _list_of_stages(group):
    run_schedule(group, gpipe(1, 1), [linear()], *pieces(1), error)


# --- split backwards ----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 5, 4), (3, 4)])
def test_a_split_linear_may_be_followed_by_an_in_place_layer(shape):
    module = nn.Sequential(linear(), nn.ReLU(inplace=True), linear(1))
    x, y = random(0, *shape), random(1, *shape)
    schedule = zero_bubble_h1(1, 1)
    (found,) = launch(_alone, 1, schedule, {0: SplitStage(module)}, [x], [y], error)
    error(module(x), y).backward()
    for mine, right in zip(found[0], module.parameters(), strict=True):
        torch.testing.assert_close(mine, right.grad)


def with_autocast(group):
    module = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))
    x, y = torch.randn(5, 4), torch.randn(5, 4)
    with torch.autocast("cpu", torch.bfloat16):
        run_schedule(group, zero_bubble_h1(1, 1), {0: module}, [x], [y], error)
    return [p.grad.dtype for p in module.parameters()]


def test_a_split_backward_works_under_autocast():
    assert launch(with_autocast, 1)[0] == [torch.float32] * 4


# --- batch norm, tied weights -------------------------------------------------------------------


def test_deferred_batch_norm_keeps_its_mode_and_a_shared_layer_shared():
    frozen = nn.BatchNorm1d(2).eval()
    assert not defer_batch_norm(frozen, 2).training
    norm = nn.BatchNorm1d(2)
    model = defer_batch_norm(nn.Sequential(norm, nn.Linear(2, 2), norm), 2)
    assert model[0] is model[2]
    with pytest.raises(ValueError, match="SyncBatchNorm"):
        defer_batch_norm(nn.SyncBatchNorm(2), 2)
    with pytest.raises(ValueError, match=r"num_microbatches is 2\.5"):
        defer_batch_norm(nn.BatchNorm1d(2), 2.5)


def test_deferred_statistics_do_not_cancel_for_a_large_mean():
    x = 1000 + torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    deferred, whole = (
        defer_batch_norm(nn.BatchNorm1d(3, momentum=1.0), 4),
        nn.BatchNorm1d(3, momentum=1.0),
    )
    for part in x.chunk(4):
        deferred(part)
    whole(x)
    torch.testing.assert_close(deferred.running_var, whole.running_var, rtol=1e-3, atol=0)


def tie(group):
    weight = nn.Parameter(torch.full((2,), float(group.rank)))
    TiedWeight(group, [1, 0], weight)
    return weight.tolist()


def test_tied_copies_take_the_value_of_the_first_holder_named():
    assert list(launch(tie, 2)) == [[1.0, 1.0]] * 2


# --- numbers ------------------------------------------------------------------------------------


def test_counts_may_be_numpy_integers_and_costs_must_be_times():
    assert gpipe(numpy.int64(2), 4) == gpipe(2, 4)
    assert simulate(naive(2, 1), forward=numpy.array([1.0, 1.0])).makespan == 6
    for wrong in ("ab", None, 1j):
        with pytest.raises(ValueError, match="give a number"):
            simulate(gpipe(2, 2), forward=wrong)
    for wrong in (float("inf"), float("nan"), -1):
        with pytest.raises(ValueError, match="finite, and not below 0"):
            simulate(gpipe(2, 2), forward=wrong)
    with pytest.raises(ValueError, match="no action takes any time"):
        simulate(gpipe(2, 2), 0, 0, communication=1)
    with pytest.raises(KeyError):
        simulate(one_f_one_b(2, 2)).start["F0"]
    with pytest.raises(ValueError, match=r"2\.0 stages for 3 layers"):
        partition([1, 2, 3], 2.0)
    with pytest.raises(ValueError, match="0 or more, and finite"):
        partition_replicated([LayerCost(-1.0, 1, 1)], 1, 1.0)
