"""BatchNorm across replicas equals BatchNorm on the whole batch."""

import sys

import cloudpickle
import pytest
import torch
from torch import nn

from pedagogy.data_parallel import DataParallel, SyncBatchNorm, convert_batch_norm
from pedagogy.ranks import launch
from pedagogy.workloads import ConvNet, digits_batch

cloudpickle.register_pickle_by_value(sys.modules[__name__])

VALUES = [[0.0, 2.0], [4.0, 6.0]]
WEIGHTS = [[1.0, -2.0], [0.5, 3.0]]  # of the outputs in the loss


def normalise(group, plain):
    layer = nn.BatchNorm1d(1) if plain else SyncBatchNorm(group, 1)
    x = torch.tensor(VALUES[group.rank]).view(2, 1).requires_grad_()
    y = layer(x)
    (y.view(-1) * torch.tensor(WEIGHTS[group.rank])).sum().backward()
    return {
        "y": y.detach().view(-1),
        "x_grad": x.grad.view(-1),
        "weight_grad": layer.weight.grad,
        "mean": layer.running_mean,
        "variance": layer.running_var,
    }


def test_C24_batch_norm_over_two_ranks_is_that_of_the_whole_batch():
    run = launch(normalise, 2, False)
    outputs = torch.cat([rank["y"] for rank in run])
    expected = torch.tensor([-1.3416, -0.4472, 0.4472, 1.3416])
    torch.testing.assert_close(outputs, expected, rtol=0, atol=1e-4)
    for rank in run:
        assert rank["mean"].item() == pytest.approx(0.3)
        assert rank["variance"].item() == pytest.approx(1.5667, abs=1e-4)

    whole = nn.BatchNorm1d(1)
    x = torch.tensor(VALUES).view(4, 1).requires_grad_()
    (whole(x).view(-1) * torch.tensor(WEIGHTS).view(-1)).sum().backward()
    gradients = torch.cat([rank["x_grad"] for rank in run])
    torch.testing.assert_close(gradients, x.grad.view(-1), rtol=1e-4, atol=1e-5)
    total = sum(rank["weight_grad"] for rank in run)
    torch.testing.assert_close(total, whole.weight.grad, rtol=1e-4, atol=1e-5)

    alone = torch.cat([rank["y"] for rank in launch(normalise, 2, True)])
    torch.testing.assert_close(alone, torch.tensor([-1.0, 1, -1, 1]), rtol=0, atol=1e-4)


def train_conv_net(group, sync, steps):
    torch.manual_seed(0)
    model = ConvNet(4).double()
    if sync:
        model = convert_batch_norm(group, model)
    wrapped = DataParallel(group, model, bucket_bytes=1000)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        images, labels = (t.chunk(group.size)[group.rank] for t in digits_batch(12, step=step))
        nn.functional.cross_entropy(wrapped(images.double()), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    logits = model(digits_batch(5, step=99)[0].double())
    return {**model.state_dict(), "eval": logits.detach()}


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_a_conv_net_on_ranks_equals_one_process_only_with_common_statistics(world_size):
    (alone,) = launch(train_conv_net, 1, False, 3)
    for states in launch(train_conv_net, world_size, True, 3):
        for name, value in alone.items():
            torch.testing.assert_close(states[name], value, rtol=1e-10, atol=1e-10)
    plain = launch(train_conv_net, world_size, False, 3)
    assert (plain[0]["classifier.weight"] - alone["classifier.weight"]).abs().max() > 1e-4


def uneven_counts(group):
    layer = SyncBatchNorm(group, 2, momentum=None).double()
    rows = torch.arange(14.0, dtype=torch.float64).view(7, 2).square()
    own = rows[:6] if group.rank == 0 else rows[6:6] if group.rank == 1 else rows[6:]
    y = layer(own.clone().requires_grad_())
    y.square().sum().backward()
    return y.detach(), layer.running_var


def test_ranks_may_have_different_numbers_of_samples_and_none():
    run = launch(uneven_counts, 3)
    whole = nn.BatchNorm1d(2, momentum=None).double()
    rows = torch.arange(14.0, dtype=torch.float64).view(7, 2).square()
    torch.testing.assert_close(torch.cat([y for y, _ in run]), whole(rows).detach())
    for _, variance in run:
        torch.testing.assert_close(variance, whole.running_var)


def too_few(group):
    layer = SyncBatchNorm(group, 2)
    with pytest.raises(ValueError, match="1 values per feature on all ranks"):
        layer(torch.ones(1 - group.rank, 2))
    with pytest.raises(ValueError, match=r"expected \(batch, 2, \.\.\.\), got shape \(4, 3\)"):
        layer(torch.ones(4, 3))
    return True


def test_one_value_per_feature_is_refused_on_all_ranks():
    assert list(launch(too_few, 2)) == [True, True]


def in_half(group):
    layer = SyncBatchNorm(group, 3)
    x = torch.randn(3000, 3, generator=torch.Generator().manual_seed(group.rank)).half()
    return x, layer(x)


def test_half_precision_is_summed_in_float32():
    run = launch(in_half, 2)  # 6,000 values: fp16 cannot count them one by one, nor sum squares
    whole = nn.BatchNorm1d(3)(torch.cat([x for x, _ in run]).float()).detach()
    y = torch.cat([y.detach() for _, y in run])
    assert y.dtype == torch.float16
    torch.testing.assert_close(y.float(), whole, rtol=2e-3, atol=2e-3)


def evaluated_on_one_rank(group):
    layer = SyncBatchNorm(group, 2, track_running_stats=False).eval()
    return layer(torch.arange(8.0).view(4, 2)).detach() if group.rank == 0 else None


def test_in_eval_mode_nothing_is_sent_even_without_running_statistics():
    run = launch(evaluated_on_one_rank, 2, timeout=20.0)
    plain = nn.BatchNorm1d(2, track_running_stats=False).eval()
    torch.testing.assert_close(run[0], plain(torch.arange(8.0).view(4, 2)).detach())
    assert len(run.trace.of("all_reduce")) == 0


def convert_a_shared_layer(group):
    layer = nn.BatchNorm1d(2)
    model = nn.Sequential(layer, nn.Sequential(nn.Linear(2, 2), layer), nn.BatchNorm1d(2))
    convert_batch_norm(group, model)
    return isinstance(model[0], SyncBatchNorm), model[0] is model[1][1], model[2] is model[0]


def test_a_batch_norm_that_is_used_twice_is_one_layer_after_converting_too():
    assert launch(convert_a_shared_layer, 1)[0] == (True, True, False)
