"""What needs a GPU: the staging path on one that ranks share, and NCCL where each has its own."""

from __future__ import annotations

import sys

import cloudpickle
import pytest
import torch

from pedagogy.ranks import launch

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.gpu


def add_and_pass_on(group):
    """Every form of communication once, on tensors that live on the rank's GPU."""
    x = torch.full((1000,), float(group.rank + 1), device=group.device)
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    buffer = torch.empty_like(x)
    if group.size > 1:
        group.exchange(sends=[(x, right)], receives=[(buffer, left)])
    else:
        buffer.copy_(x)
    total = group.all_reduce(x)
    gathered = torch.stack(group.all_gather(x))
    scattered = group.reduce_scatter([x] * group.size)
    exchanged = torch.stack(group.all_to_all([x] * group.size))
    assert total.device == group.device
    return total[0], buffer[0], gathered[:, 0], scattered[0], exchanged[:, 0]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_on_gpus_get_what_ranks_on_the_cpu_get(size):
    on_gpu, on_cpu = launch(add_and_pass_on, size), launch(add_and_pass_on, size, device="cpu")
    assert on_gpu.device == "cuda"
    assert on_gpu.backend == ("nccl" if size <= torch.cuda.device_count() else "gloo")
    for got, expected in zip(on_gpu, on_cpu, strict=True):
        for a, b in zip(got, expected, strict=True):
            assert torch.equal(a, b)


def test_L01_a_cuda_context_in_the_caller_does_no_harm():
    torch.zeros(1, device="cuda")
    for _ in range(2):
        assert list(launch(lambda g: g.all_reduce(torch.ones(1, device=g.device)).item(), 2)) == [
            2,
            2,
        ]


def test_a_span_lasts_as_long_as_its_kernels_and_not_as_their_launch():
    def worker(group):
        x = torch.ones(4096, 4096, device=group.device)
        x @ x  # the first product loads libraries
        torch.cuda.synchronize()
        with group.span("compute", "products"):
            for _ in range(50):
                x @ x
        launched = group.now()
        torch.cuda.synchronize()
        done = group.now()
        event = group.events[-1]
        return launched - event.start, done - event.start, event.end - event.start

    for _launched, done, span in launch(worker, 1):
        assert 0.5 * done < span < 1.1 * done
