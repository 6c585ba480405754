"""What needs a GPU: streams and pinned memory, and the same equalities as on a CPU."""

import pytest
import torch

from pedagogy.measure import BudgetExceeded, DeviceBudget
from pedagogy.offload import OffloadedModule, OffloadedOptimizer, offload_activations
from pedagogy.ranks.link import CudaLink, host_buffer, open_link
from pedagogy.workloads import GPT
from tests.offload.training import assert_same, batches, tied_gpt, values

pytestmark = pytest.mark.gpu


def train(model, optimizer, steps=5, loss=None):
    """Losses of some steps on the GPU."""
    losses = []
    for batch in batches(model, steps):
        optimizer.zero_grad()
        value = (loss or model.loss)(*(t.cuda() for t in batch))
        value.backward()
        optimizer.step()
        losses.append(value.detach())
    return losses


def test_what_arrives_is_what_was_sent_and_buffers_are_pinned():
    link = open_link("cuda")
    assert type(link) is CudaLink
    x = torch.randn(5000, 1000, device="cuda")
    up = link.to_host(x, name="up")
    host = up.finish()
    assert host.is_pinned()
    assert torch.equal(host, x.cpu())
    back = link.to_device(host, torch.empty_like(x), "down").wait()
    assert torch.equal(back, x)
    assert [event.kind for event in link.trace] == ["to_host", "to_device"]
    assert all(event.start < event.end for event in link.trace)
    assert host_buffer(x).is_pinned()


def test_C77_a_host_that_does_not_finish_reads_old_data_and_one_that_does_reads_the_new():
    link = open_link("cuda")
    x = torch.ones(12_500_000, device="cuda")  # 50 MB
    into = torch.zeros(x.shape, pin_memory=True)
    torch.cuda.synchronize()
    busy = torch.randn(8192, 8192, device="cuda")
    for _ in range(20):
        busy = busy @ busy  # the copy is behind it
    copy = link.to_host(x, into)
    copy.wait()
    assert into[-1] == 0
    copy.finish()
    assert into.all()


@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_C77_twenty_steps_are_those_of_the_same_update_on_a_host_to_the_bit(prefetch):
    """AdamW rounds otherwise on a GPU: both runs update on the host, one moves its layers."""
    plain, model = tied_gpt().cuda(), tied_gpt().cuda()
    losses = train(plain, OffloadedOptimizer(plain, torch.optim.AdamW, lr=0.01), steps=20)
    module = OffloadedModule(model, prefetch=prefetch)
    optimizer = OffloadedOptimizer(module, torch.optim.AdamW, lr=0.01)

    def loss(*batch):
        with offload_activations(module.link):
            return model.loss(*batch)

    assert_same(train(model, optimizer, steps=20, loss=loss), losses)
    assert_same(values(module.restore()), values(plain))
    assert all(p.is_cuda for p in model.parameters())


def test_a_gpt_that_does_not_fit_trains_offloaded():
    def make():
        torch.manual_seed(0)
        return GPT(layers=12, hidden=512, heads=8, sequence=8)

    plain = make().cuda()
    expected = train(plain, OffloadedOptimizer(plain, torch.optim.AdamW, lr=1e-3), steps=3)
    del plain
    torch.cuda.empty_cache()

    limit = 120 * 2**20  # parameters alone are 151 MB
    with pytest.raises(BudgetExceeded), DeviceBudget(limit, device="cuda"):
        make().cuda()
    model = make().cuda()
    module = OffloadedModule(model, prefetch=1)
    optimizer = OffloadedOptimizer(module, torch.optim.AdamW, lr=1e-3)
    with DeviceBudget(limit, model, device="cuda"):
        assert_same(train(model, optimizer, steps=3), expected)
