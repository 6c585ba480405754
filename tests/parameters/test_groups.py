"""Broadcast, average, gather, norm and clip, on real ranks."""

from __future__ import annotations

import math

import pytest
import torch

from pedagogy.parameters import clip_by_global_norm, global_norm
from pedagogy.ranks import launch


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_after_a_broadcast_all_ranks_hold_the_sources_values(world_size):
    def worker(group, source):

        from pedagogy.parameters import broadcast
        from pedagogy.workloads import ConvNet

        model = ConvNet()  # ranks are seeded differently; buffers of two dtypes
        for buffer in model.buffers():
            buffer.add_(group.rank)
        tied = next(model.parameters())
        broadcast(group, [*model.parameters(), *model.buffers(), tied], source, 1000)
        return [t.detach().clone() for t in (*model.parameters(), *model.buffers())]

    source = world_size - 1
    results = list(launch(worker, world_size, source))
    for rank in range(world_size):
        assert all(torch.equal(a, b) for a, b in zip(results[rank], results[source], strict=True))
    assert int(results[0][-1]) == source  # num_batches_tracked, an int64 buffer


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_an_average_is_the_mean_over_ranks_in_place_for_any_stride(world_size):
    def worker(group):
        import torch

        from pedagogy.parameters import average

        a = torch.full((3,), float(group.rank))
        b = torch.arange(6.0, dtype=torch.float64).reshape(2, 3).t() * (group.rank + 1)
        average(group, [a, b, a], bucket_bytes=8)
        return a, b

    mean = (world_size - 1) / 2
    for a, b in launch(worker, world_size):
        torch.testing.assert_close(a, torch.full((3,), mean))
        expected = torch.arange(6.0, dtype=torch.float64).reshape(2, 3).t() * (mean + 1)
        torch.testing.assert_close(b, expected)


def test_an_average_of_half_precision_does_not_overflow_in_the_sum():
    def worker(group):
        import torch

        from pedagogy.parameters import average

        x = torch.full((3,), 40_000.0, dtype=torch.float16)
        average(group, [x])
        return x.tolist()

    assert list(launch(worker, 2)) == [[40_000.0] * 3] * 2  # the sum, 80,000, is above 65,504


def test_an_average_of_integers_is_refused():
    from pedagogy.parameters import average

    with pytest.raises(ValueError, match=r"torch.int64 would be rounded: 1 such"):
        average(None, [torch.zeros(2), torch.zeros(2, dtype=torch.int64)])


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_gathered_shards_are_the_full_tensor_on_every_rank(world_size):
    def worker(group):
        import torch

        from pedagogy.parameters import gather, shard

        full = torch.arange(10.0).reshape(5, 2)
        return gather(group, shard(full, group.rank, group.size), full.shape)

    for result in launch(worker, world_size):
        assert torch.equal(result, torch.arange(10.0).reshape(5, 2))


def test_C09_a_replicated_gradient_counts_once_and_every_shard_counts():
    def worker(group):
        import torch

        from pedagogy.parameters import global_norm

        replicated, piece = torch.tensor([3.0, 0.0]), torch.tensor([2.0, 2.0])
        right = global_norm([((), [replicated]), ((group,), [piece])])
        twice = global_norm([((group,), [replicated, piece])])
        local = global_norm([((), [replicated, piece])])
        return float(right), float(twice), float(local)

    for right, twice, local in launch(worker, 2):
        assert right == pytest.approx(5.0, rel=1e-7)
        assert twice == pytest.approx(math.sqrt(34), rel=1e-7)  # the mistakes, so that they differ
        assert local == pytest.approx(math.sqrt(17), rel=1e-7)


def test_clipping_over_a_grid_equals_pytorchs_clipping_of_the_full_model():
    def worker(group):
        import torch

        from pedagogy.parameters import clip_by_global_norm, shard
        from pedagogy.ranks import grid

        axes = grid(group, pp=2, tp=2)
        pp, tp = axes["pp"], axes["tp"]
        generator = torch.Generator().manual_seed(0)
        full = [torch.randn(7, generator=generator) for _ in range(4)]
        # each stage has one weight, cut over tp, and one norm, replicated over tp
        weight = shard(full[2 * pp.rank], tp.rank, tp.size)
        norm = full[2 * pp.rank + 1].clone()
        total = clip_by_global_norm([((pp, tp), [weight]), ((pp,), [norm])], 1.0)
        return pp.rank, tp.rank, float(total), weight, norm

    generator = torch.Generator().manual_seed(0)
    full = [torch.nn.Parameter(torch.zeros(7)) for _ in range(4)]
    for parameter in full:
        parameter.grad = torch.randn(7, generator=generator)
    expected = float(torch.nn.utils.clip_grad_norm_(full, 1.0))
    for stage, piece, total, weight, norm in launch(worker, 4):
        assert total == pytest.approx(expected, rel=1e-6)
        padded = torch.cat([full[2 * stage].grad, torch.zeros(1)])
        torch.testing.assert_close(weight, padded[4 * piece : 4 * piece + 4])
        torch.testing.assert_close(norm, full[2 * stage + 1].grad)


@pytest.mark.parametrize("max_norm", [0.5, 5.0, 100.0])
def test_one_process_clips_as_pytorch_does(max_norm):
    torch.manual_seed(0)
    ours = [torch.randn(5), torch.randn(3, 2)]
    theirs = [torch.nn.Parameter(torch.zeros_like(g)) for g in ours]
    for parameter, gradient in zip(theirs, ours, strict=True):
        parameter.grad = gradient.clone()
    expected = torch.nn.utils.clip_grad_norm_(theirs, max_norm)
    norm = clip_by_global_norm([((), [*ours, ours[0]])], max_norm)  # a tied one counts once
    torch.testing.assert_close(norm.float(), expected)
    for parameter, gradient in zip(theirs, ours, strict=True):
        torch.testing.assert_close(gradient, parameter.grad)


def test_large_half_precision_gradients_do_not_overflow_the_norm():
    assert float(global_norm([((), [torch.full((4,), 1000.0, dtype=torch.float16)])])) == 2000


def test_complex_gradients_count_as_two_real_numbers_and_are_clipped_whole():
    gradient = torch.tensor([3 + 4j, 12j]).conj()
    assert float(clip_by_global_norm([((), [gradient])], 6.5)) == 13
    torch.testing.assert_close(gradient, torch.tensor([1.5 - 2j, -6j]))


def test_a_norm_of_nothing_is_zero():
    assert float(global_norm([])) == 0
    assert float(global_norm([((), [])])) == 0


def test_clipping_to_nothing_is_refused():
    with pytest.raises(ValueError, match="max_norm 0"):
        clip_by_global_norm([((), [torch.ones(1)])], 0)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_C78_micro_batches_and_ranks_change_rounding_and_nothing_else(dtype, tolerance):
    def worker(group, dtype, num_microbatches):
        import torch

        from pedagogy.parameters import average
        from pedagogy.workloads import MLP

        torch.manual_seed(0)  # initial weights and data: the same for any number of ranks
        model = MLP((784, 512, 256, 10)).to(dtype)
        images, labels = torch.randn(64, 784, dtype=dtype), torch.randint(10, (64,))
        mine = zip(images.chunk(group.size), labels.chunk(group.size), strict=True)
        images, labels = list(mine)[group.rank]
        pieces = images.chunk(num_microbatches), labels.chunk(num_microbatches)
        for x, y in zip(*pieces, strict=True):
            (model.loss(x, y) / num_microbatches).backward()
        average(group, [p.grad for p in model.parameters()])
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    whole = launch(worker, 1, dtype, 1)[0]
    for world_size, num_microbatches in [(1, 2), (1, 4), (2, 1), (4, 1), (2, 2)]:
        for gradient in launch(worker, world_size, dtype, num_microbatches):
            assert float((gradient - whole).norm() / whole.norm()) < tolerance
