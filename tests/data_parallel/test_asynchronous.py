"""The parameter server: every run equals the recursion that its own record states."""

import sys
import time

import cloudpickle
import pytest
import torch
from torch import nn
from torch.nn import functional

from pedagogy.data_parallel import (
    replay,
    replay_backup,
    train_asynchronously,
    train_synchronously,
    train_with_backup_workers,
)
from pedagogy.ranks import launch

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def make_model(seed=0):
    """Tied, frozen and unused parameters stand in the way of whoever flattens carelessly."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 10))
    model[2].requires_grad_(False)
    model.add_module("unused", nn.Identity())
    model.unused.weight = nn.Parameter(torch.ones(3))
    return model.double()


def loss(model, batch):
    images, labels = batch
    return functional.cross_entropy(model(images.flatten(1).double()), labels)


def batches(worker, step):
    generator = torch.Generator().manual_seed(100 * worker + step)
    return torch.randn(4, 64, generator=generator), torch.randint(10, (4,), generator=generator)


class Gated:
    """Batches of which worker `late` gets its first only when the others have drawn their last."""

    def __init__(self, folder, late, steps):
        self.folder, self.late, self.last = folder, late, steps - 1

    def __call__(self, worker, step):
        if worker != self.late and step == self.last:
            (self.folder / f"worker{worker}").touch()
        others = range(1, self.late)
        while worker == self.late and not all(
            (self.folder / f"worker{other}").exists() for other in others
        ):
            time.sleep(0.001)
        return batches(worker, step)


def asynchronous(group, steps, drawn=batches, **options):
    model = make_model(group.rank)
    record = train_asynchronously(group, model, loss, drawn, steps, 0.1, **options)
    return record, [p.detach() for p in model.parameters() if p.requires_grad]


def check(run, steps, workers):
    """What must be true of every asynchronous run; returns its record."""
    record = run[0][0]
    assert [other for other, _ in run[1:]] == [None] * workers
    assert sorted((u.worker, u.step) for u in record.updates) == [
        (worker, step) for worker in range(1, workers + 1) for step in range(steps)
    ]
    again = replay(record, make_model(), loss, batches)
    torch.testing.assert_close(again, record.weights, rtol=1e-10, atol=1e-10)
    for _, weights in run:
        flat = torch.cat([weight.flatten() for weight in weights])
        torch.testing.assert_close(flat, record.weights, rtol=0, atol=0)
    assert sum(record.histogram.values()) == len(record.updates)
    return record


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_an_asynchronous_run_equals_the_recursion_of_its_record(workers):
    record = check(launch(asynchronous, workers + 1, 5), 5, workers)
    if workers == 1:
        assert record.histogram == {0: 5}


@pytest.mark.parametrize("slowdown", [(1.0, 1.0, 1.0), (1.0, 2.0, 6.0)])
def test_a_worker_is_as_stale_as_the_others_are_busy(slowdown):
    run = launch(asynchronous, 4, 6, slowdown=slowdown, seconds_per_step=0.005)
    record = check(run, 6, 3)
    for worker in (1, 2, 3):  # its gradients are stale by exactly what the others sent meanwhile
        own = [v for v, update in enumerate(record.updates) if update.worker == worker]
        others = own[-1] - (len(own) - 1)  # the others' updates up to this worker's last one
        assert sum(record.staleness[version] for version in own) == others


def test_without_a_bound_a_straggler_falls_behind_as_far_as_the_others_get(tmp_path):
    steps = 5
    record = check(launch(asynchronous, 4, steps, Gated(tmp_path, 3, steps)), steps, 3)
    first = next(v for v, update in enumerate(record.updates) if update.worker == 3)
    assert record.staleness[first] == first >= 2 * (steps - 1)  # more than a bound of 1 allows


@pytest.mark.parametrize("bound", [0, 1, 2])
def test_a_bound_on_staleness_holds_for_a_straggler(bound):
    options = {"staleness_bound": bound, "seconds_per_step": 0.01, "slowdown": (1.0, 1.0, 6.0)}
    record = check(launch(asynchronous, 4, 5, **options), 5, 3)
    assert max(record.staleness) <= (3 - 1) * (2 * bound + 1)
    clocks = {1: 0, 2: 0, 3: 0}
    for update in record.updates:
        clocks[update.worker] += 1
        assert max(clocks.values()) - min(clocks.values()) <= bound + 1
    if bound == 0:  # in lockstep: every round has each worker once
        rounds = [record.updates[i : i + 3] for i in range(0, 15, 3)]
        assert all({u.worker for u in one} == {1, 2, 3} for one in rounds)


def test_the_replay_notices_another_order_another_version_and_another_batch():
    record = launch(asynchronous, 3, 4, seconds_per_step=0.01)[0][0]
    right = replay(record, make_model(), loss, batches)

    def changed(updates, drawn=batches):
        other = type(record)(record.learning_rate, record.initial, record.weights, updates)
        return (replay(other, make_model(), loss, drawn) - right).abs().max()

    fresh = [u._replace(read_version=v) for v, u in enumerate(record.updates)]
    assert changed(fresh) > 1e-6, "staleness was ignored"
    assert changed(record.updates[:-1]) > 1e-6, "an update was lost"
    assert changed(record.updates, lambda w, s: batches(w, s + 1)) > 1e-6
    assert changed(list(record.updates)) == 0


def test_the_server_sends_weights_once_for_each_gradient():
    run = launch(asynchronous, 3, 4)
    numel = run[0][0].weights.numel()
    sent = [run.trace.bytes_sent(rank=rank, kind="send") for rank in range(3)]
    assert sent == [2 * 4 * 8 * numel, 4 * 8 * (numel + 1), 4 * 8 * (numel + 1)]  # and the loss


def synchronous(group, steps, slowdown):
    model = make_model(group.rank)
    history = train_synchronously(
        group, model, loss, batches, steps, 0.1, slowdown, seconds_per_step=0.02
    )
    return history, [p.detach() for p in model.parameters() if p.requires_grad]


def test_every_synchronous_step_lasts_as_long_as_the_slowest_rank():
    steps = 4
    run = launch(synchronous, 3, steps, (1.0, 1.0, 5.0))
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        value = sum(loss(model, batches(rank, step)) for rank in range(3)) / 3
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(value.item())
    right = [p.detach() for p in model.parameters() if p.requires_grad]
    for history, weights in run:
        torch.testing.assert_close(weights, right, rtol=1e-10, atol=1e-10)
        assert [step.loss for step in history] == pytest.approx(losses, rel=1e-10)
        assert history[-1].seconds >= steps * 5 * 0.02  # sleeping lasts at least as long as asked


def with_backups(group, steps, drawn=batches, **options):
    model = make_model(group.rank)
    record = train_with_backup_workers(group, model, loss, drawn, steps, 0.1, **options)
    return record, [p.detach() for p in model.parameters() if p.requires_grad]


@pytest.mark.parametrize(("workers", "backups"), [(1, 0), (2, 1), (3, 0), (3, 1), (3, 2)])
def test_a_step_applies_the_mean_of_exactly_the_first_gradients(workers, backups):
    run = launch(with_backups, workers + 1, 4, num_backups=backups)
    record = run[0][0]
    assert [len(set(step.workers)) for step in record.steps] == [workers - backups] * 4
    again = replay_backup(record, make_model(), loss, batches)
    torch.testing.assert_close(again, record.weights, rtol=1e-10, atol=1e-10)
    for _, weights in run:
        flat = torch.cat([weight.flatten() for weight in weights])
        torch.testing.assert_close(flat, record.weights, rtol=0, atol=0)
    if backups == 0:
        assert record.dropped == []


def test_a_straggler_is_dropped_and_nobody_waits_for_it(tmp_path):
    record = launch(with_backups, 4, 5, Gated(tmp_path, 3, 5), num_backups=1)[0][0]
    assert [set(step.workers) for step in record.steps[:-1]] == [{1, 2}] * 4
    assert (3, 0) in record.dropped
    wrong = replay_backup(
        type(record)(0.1, record.initial, record.weights, [
            step._replace(workers=(1, 2, 3)) for step in record.steps
        ]), make_model(), loss, batches)  # fmt: skip
    assert (wrong - record.weights).abs().max() > 1e-6, "the mean of all would pass as well"


def refuse(group):
    arguments = (group, make_model(), loss, batches)
    messages = []
    for train, rest, options in [
        (train_asynchronously, (0, 0.1), {}),
        (train_asynchronously, (1, 0.1), {"slowdown": (1.0,)}),
        (train_asynchronously, (1, 0.1), {"staleness_bound": -1}),
        (train_with_backup_workers, (1, 0.1, 2), {}),
        (train_synchronously, (1, 0.1), {"slowdown": (1.0,)}),
    ]:
        with pytest.raises(ValueError, match=" ") as caught:
            train(*arguments, *rest, **options)
        messages.append(str(caught.value))
    return messages, len(group.events)


def test_bad_input_is_refused_with_the_numbers_before_anything_is_sent():
    for messages, num_events in launch(refuse, 3):
        assert num_events == 0
        for message, part in zip(
            messages,
            [
                "steps is 0",
                "1 factors; 3 ranks are a server and 2 workers",
                "staleness_bound is -1",
                "num_backups is 2 of 2 workers; it can be 0 to 1",
                "1 factors for 3 ranks",
            ],
            strict=True,
        ):
            assert part in message


def alone(group):
    with pytest.raises(ValueError, match="1 rank: a server and a worker need at least 2"):
        train_asynchronously(group, make_model(), loss, batches, 1, 0.1)
    return True


def test_a_server_without_workers_is_refused():
    assert launch(alone, 1)[0]
