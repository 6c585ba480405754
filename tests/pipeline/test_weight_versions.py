"""PipeDream's stages on real ranks, held step for step to the recursions of the papers."""

import sys

import cloudpickle
import pytest
import torch
from torch import nn

from pedagogy.measure import memory_meter
from pedagogy.pipeline import (
    Layout,
    StashingStage,
    TwoVersionStage,
    UnstashedStage,
    VerticalSyncStage,
    one_f_one_b,
    pipedream,
    pipedream_2bw,
    pipedream_replicated,
    replica_group,
    run_schedule,
    stashing,
    train_by_recursion,
    two_versions,
    vertical_sync,
)
from pedagogy.ranks import launch

cloudpickle.register_pickle_by_value(sys.modules[__name__])

WIDTH, NUM_MINIBATCHES = 6, 12


def make_stages(num_stages):
    """Uneven stages, one of them with a frozen layer; the same on every rank."""
    torch.manual_seed(0)
    stages = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(num_stages)]
    stages[-1] = nn.Sequential(nn.Linear(WIDTH, 9), nn.Tanh(), nn.Linear(9, WIDTH, bias=False))
    stages[0].append(nn.Linear(WIDTH, WIDTH).requires_grad_(False))
    return [stage.double() for stage in stages]


def minibatches(count):
    generator = torch.Generator().manual_seed(5)
    shape = (count, 3, WIDTH)
    return [list(torch.randn(shape, generator=generator, dtype=torch.double)) for _ in range(2)]


def squared_error(output, target):
    return ((output - target) ** 2).mean()


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.2)


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.7, weight_decay=0.01)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01, eps=1e-3)


def recorded(stage):
    """`stage`, which writes down its newest weights after every update."""
    stage.history = [[p.detach().clone() for p in stage.module.parameters()]]
    update = stage.update

    def update_and_record(k):
        update(k)
        stage.history.append([p.detach().clone() for p in stage.module.parameters()])

    stage.update = update_and_record
    return stage


def train(group, schedule, make_stage, make_optimizer):
    """Run the schedule once; what each rank's stage went through is returned."""
    layout = Layout(schedule)
    number = schedule[group.rank][0].stage
    module = make_stages(layout.num_stages)[number]
    stage = recorded(make_stage(group, layout, number, module, make_optimizer))
    inputs, targets = minibatches(layout.num_microbatches)
    run = run_schedule(group, schedule, {number: stage}, inputs, targets, squared_error)
    return {
        "stage": number,
        "history": stage.history,
        "used": stage.used,
        "versions": stage.peak_versions,
        "in_flight": run.peak_in_flight,
        "losses": run.losses,
    }


def stash(group, layout, number, module, make_optimizer):
    return StashingStage(module, make_optimizer)


def no_stash(group, layout, number, module, make_optimizer):
    return UnstashedStage(module, make_optimizer)


def sync_vertically(group, layout, number, module, make_optimizer):
    return VerticalSyncStage(module, make_optimizer, layout.num_stages)


def two(group, layout, number, module, make_optimizer):
    return TwoVersionStage(module, make_optimizer, 4)


def replicate(group, layout, number, module, make_optimizer):
    return StashingStage(module, make_optimizer, replica_group(group, layout, number))


def recursion(num_stages, make_optimizer, version_of, per_update=1, count=NUM_MINIBATCHES):
    stages = make_stages(num_stages)
    inputs, targets = minibatches(count)
    return train_by_recursion(
        stages, make_optimizer, inputs, targets, squared_error, version_of, per_update
    )


def assert_same_history(ranks, expected):
    """After every update, the ranks' weights laid one behind the other are the expected ones."""
    for step, weights in enumerate(expected):
        found = [p for rank in ranks for p in rank["history"][step]]
        assert len(found) == len(weights)
        for mine, right in zip(found, weights, strict=True):
            torch.testing.assert_close(mine, right, rtol=0, atol=1e-12, msg=f"update {step}")


@pytest.mark.parametrize("make_optimizer", [sgd, momentum, adam])
@pytest.mark.parametrize("num_stages", [1, 2, 3, 4])
def test_stashing_equals_its_recursion_after_every_update(num_stages, make_optimizer):
    schedule = pipedream(num_stages, NUM_MINIBATCHES)
    ranks = launch(train, num_stages, schedule, stash, make_optimizer)
    assert_same_history(ranks, recursion(num_stages, make_optimizer, stashing(num_stages)))


@pytest.mark.parametrize("num_stages", [2, 4])
def test_vertical_sync_equals_its_recursion_after_every_update(num_stages):
    schedule = pipedream(num_stages, NUM_MINIBATCHES)
    ranks = launch(train, num_stages, schedule, sync_vertically, momentum)
    assert_same_history(ranks, recursion(num_stages, momentum, vertical_sync(num_stages)))
    assert [rank["versions"] for rank in ranks] == [num_stages] * num_stages
    assert all(rank["used"] == ranks[0]["used"] for rank in ranks)


@pytest.mark.parametrize(("num_stages", "make_optimizer"), [(2, momentum), (3, adam), (4, sgd)])
def test_two_buffered_weights_equal_their_recursion_and_need_two_versions(
    num_stages, make_optimizer
):
    schedule = pipedream_2bw(num_stages, num_batches=4, microbatches_per_batch=4)
    ranks = launch(train, num_stages, schedule, two, make_optimizer)
    expected = recursion(num_stages, make_optimizer, two_versions(4), per_update=4, count=16)
    assert_same_history(ranks, expected)
    assert len(expected) == 5
    assert [rank["versions"] for rank in ranks] == [2] * num_stages


def test_2bw_counts_versions_from_one_as_the_paper_does():
    """The paper counts micro-batches from 1: version max(floor((k - 1) / m) - 1, 0)."""
    version_of = two_versions(4)
    for k in range(1, 40):
        assert version_of(k - 1, 0) == max((k - 1) // 4 - 1, 0)


def test_C63_versions_in_forward_and_backward_are_the_same_and_stage_s_keeps_p_minus_s():
    ranks = launch(train, 4, pipedream(4, NUM_MINIBATCHES), stash, sgd)
    assert [rank["versions"] for rank in ranks] == [4, 3, 2, 1]
    assert [rank["in_flight"] for rank in ranks] == [4, 3, 2, 1]
    for rank in ranks:
        assert all(forward == backward for forward, backward in rank["used"].values())
        s = rank["stage"]
        assert [f for f, _ in rank["used"].values()] == [
            max(k - (3 - s), 0) for k in range(NUM_MINIBATCHES)
        ]


def test_C63_without_stashing_stage_0_backpropagates_through_weights_3_updates_newer():
    ranks = launch(train, 4, pipedream(4, NUM_MINIBATCHES), no_stash, sgd)
    for rank in ranks:
        newer = [backward - forward for forward, backward in rank["used"].values()]
        assert newer[4:] == [3 - rank["stage"]] * (NUM_MINIBATCHES - 4)
        assert rank["versions"] == 1


def test_without_stashing_the_weights_depart_from_the_recursion_at_the_second_update():
    """The first gradient is right; from the second on the stage's weights are others."""
    ranks = launch(train, 3, pipedream(3, NUM_MINIBATCHES), no_stash, sgd)
    expected = recursion(3, sgd, stashing(3))
    assert_same_history(ranks, expected[:2])
    with pytest.raises(AssertionError, match="update"):
        assert_same_history(ranks, expected)


def newest_everywhere(num_stages):
    return lambda k, stage: k


def one_version_late(num_stages):
    return lambda k, stage: max(k - (num_stages - stage), 0)


def in_the_last_stage_as_in_the_first(num_stages):
    return lambda k, stage: max(k - (num_stages - 1), 0)


@pytest.mark.parametrize(
    "wrong", [newest_everywhere, one_version_late, in_the_last_stage_as_in_the_first]
)
def test_the_comparison_notices_another_recursion(wrong):
    ranks = launch(train, 3, pipedream(3, NUM_MINIBATCHES), stash, sgd)
    with pytest.raises(AssertionError, match="update"):
        assert_same_history(ranks, recursion(3, sgd, wrong(3)))


def test_a_pipeline_without_flush_does_not_equal_synchronous_sgd():
    ranks = launch(train, 3, pipedream(3, NUM_MINIBATCHES), stash, sgd)
    synchronous = recursion(3, sgd, newest_everywhere(3))
    with pytest.raises(AssertionError, match="update"):
        assert_same_history(ranks, synchronous)


# --- replicated stages -----------------------------------------------------------------------


def replicated_recursion(replicas, count):
    """One process: stage s updates once per round of replicas[s], with the mean gradient.

    A replica runs its forwards and backwards in turn, so of its own n-th minibatch it has met
    n - (in flight - 1) updates.
    """
    stages = make_stages(len(replicas))
    behind = [sum(replicas[s:]) for s in range(len(replicas))]
    in_flight = [-(-total // own) for total, own in zip(behind, replicas, strict=True)]
    inputs, targets = minibatches(count)
    history = [[[p.detach().clone() for p in stage.parameters()]] for stage in stages]
    sums = [None] * len(stages)
    for k in range(count):
        versions = [
            max(k // own - (flying - 1), 0) for own, flying in zip(replicas, in_flight, strict=True)
        ]
        x, leaves = inputs[k], []
        for stage, version, past in zip(stages, versions, history, strict=True):
            names = [name for name, _ in stage.named_parameters()]
            met = [w.clone().requires_grad_() for w in past[version]]
            x = torch.func.functional_call(stage, dict(zip(names, met, strict=True)), (x,))
            leaves.append(met)
        squared_error(x, targets[k]).backward()
        for s, (stage, own) in enumerate(zip(stages, replicas, strict=True)):
            frozen = [not p.requires_grad for p in stage.parameters()]
            gradients = [
                torch.zeros_like(w) if still else w.grad
                for w, still in zip(leaves[s], frozen, strict=True)
            ]
            sums[s] = gradients if sums[s] is None else [
                a + b for a, b in zip(sums[s], gradients, strict=True)
            ]  # fmt: skip
            if k % own == own - 1:
                newest = history[s][-1]
                history[s].append([w - 0.2 * g / own for w, g in zip(newest, sums[s], strict=True)])
                sums[s] = None
    return history


@pytest.mark.parametrize("replicas", [[2, 1], [1, 2], [2, 1, 1], [3, 1], [2, 2]])
def test_replicated_stages_equal_their_recursion_and_each_other(replicas):
    schedule = pipedream_replicated(replicas, NUM_MINIBATCHES)
    ranks = launch(train, sum(replicas), schedule, replicate, sgd)
    expected = replicated_recursion(replicas, NUM_MINIBATCHES)
    for rank in ranks:
        right = expected[rank["stage"]]
        assert len(rank["history"]) == len(right) == NUM_MINIBATCHES // replicas[rank["stage"]] + 1
        for step, (mine, weights) in enumerate(zip(rank["history"], right, strict=True)):
            for a, b in zip(mine, weights, strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=1e-12, msg=f"update {step}")
    for rank in ranks[1 : replicas[0]]:  # bit for bit
        for mine, first in zip(rank["history"], ranks[0]["history"], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, first, strict=True))


def test_forward_and_backward_of_a_minibatch_run_on_the_same_replica_in_turn():
    schedule = pipedream_replicated([2, 1, 1], NUM_MINIBATCHES)
    run = launch(train, 4, schedule, replicate, sgd)
    for rank in (0, 1):
        for kind in "FB":
            names = [event.name for event in run.trace.of(kind=kind, rank=rank)]
            assert names == [f"{kind}{k}" for k in range(rank, NUM_MINIBATCHES, 2)]


# --- what it costs, and what is refused -------------------------------------------------------


def measure_versions(group, schedule):
    """The bytes of weights that are live at the peak, beyond the model itself."""
    number = group.rank
    module = nn.Linear(200, 200, bias=False)
    with torch.no_grad():
        module.weight.copy_(torch.eye(200))
    stage = StashingStage(module, sgd_small)
    inputs = [torch.ones(1, 200) for _ in range(NUM_MINIBATCHES)]
    with memory_meter() as meter:
        run_schedule(group, schedule, {number: stage}, inputs, inputs, squared_error)
    return stage.peak_versions, meter.peak


def sgd_small(parameters):
    return torch.optim.SGD(parameters, lr=1e-3)


def test_measured_bytes_grow_by_one_weight_matrix_for_each_version_kept():
    """Stage s keeps p - s versions, and one gradient; the last steps in place on what it had."""
    matrix = 200 * 200 * 4
    measured = launch(measure_versions, 4, pipedream(4, NUM_MINIBATCHES))
    assert [versions for versions, _ in measured] == [4, 3, 2, 1]
    born = [4, 3, 2, 0]  # of these versions, made while the meter ran
    for copies, (_, peak) in zip(born, measured, strict=True):
        assert 0 <= peak / matrix - (copies + 1) < 0.1  # the rest: activations of one row


def refuse(group):
    """A layer that is updated in place between its forward and its backward."""
    layer = nn.Linear(3, 3)
    x = torch.ones(1, 3, requires_grad=True)
    output = layer(x)
    with torch.no_grad():
        layer.weight += 1
    try:
        output.sum().backward()
    except RuntimeError as error:
        return str(error)
    return "no error"


def test_pytorch_refuses_a_backward_through_weights_that_changed_in_place():
    assert "modified by an inplace operation" in launch(refuse, 1)[0]


def run_without_update(group):
    module = make_stages(1)[0]
    inputs, targets = minibatches(2)
    return run_schedule(group, pipedream(1, 2), {0: module}, inputs, targets, squared_error)


def test_a_schedule_with_updates_needs_a_stage_that_can_update():
    with pytest.raises(RuntimeError, match="has U for stage 0, but a Stage has no update"):
        launch(run_without_update, 1)


def train_with_a_flush(group):
    """A stage with versions under a schedule without updates keeps its gradients."""
    modules = make_stages(2)
    stage = StashingStage(modules[group.rank], sgd)
    inputs, targets = minibatches(4)
    run_schedule(group, one_f_one_b(2, 4), {group.rank: stage}, inputs, targets, squared_error)
    whole = make_stages(2)
    output = whole[1](whole[0](torch.cat(inputs)))
    squared_error(output, torch.cat(targets)).backward()
    return all(
        p.grad is q.grad is None or torch.allclose(p.grad, q.grad, atol=1e-12)
        for p, q in zip(
            modules[group.rank].parameters(), whole[group.rank].parameters(), strict=True
        )
    )


def test_with_a_flush_the_gradient_is_that_of_the_batch():
    assert list(launch(train_with_a_flush, 2)) == [True, True]
