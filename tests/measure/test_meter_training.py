"""The memory meter on training steps; PyTorch's own records are the oracle."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pedagogy.measure import KINDS, memory_meter
from pedagogy.ranks import launch
from pedagogy.workloads import GPT, ConvNet, digits_batch, text_batch


def new_gpt(**sizes):
    torch.manual_seed(0)
    model = GPT(**sizes)
    return model, torch.optim.AdamW(model.parameters())


def train_once(model, optimizer, batch):
    model.loss(*batch).backward()
    optimizer.step()
    optimizer.zero_grad()


def test_kinds_of_a_training_step_are_what_arithmetic_says():
    model, optimizer = new_gpt()
    num_parameters = sum(p.numel() for p in model.parameters())
    num_tensors = sum(1 for _ in model.parameters())
    batch = text_batch(4, 64)
    with memory_meter(model, optimizer) as meter:
        assert meter.now_by_kind["parameters"] == 4 * num_parameters
        assert meter.now_by_kind["buffers"] == 2 * 64 * 64
        loss = model.loss(*batch)
        assert meter.now_by_kind["gradients"] == 0
        assert meter.now_by_kind["activations"] > 4 * 64 * 256 * 4  # more than the logits
        loss.backward()
        assert meter.now_by_kind["gradients"] == 4 * num_parameters
        assert meter.now_by_kind["activations"] == 4  # the loss itself
        assert meter.now_by_kind["optimizer_state"] == 0
        optimizer.step()
        assert meter.now_by_kind["optimizer_state"] == 8 * num_parameters + 4 * num_tensors
        optimizer.zero_grad()
        assert meter.now_by_kind["gradients"] == 0
    assert meter.peak == sum(meter.by_kind.values())
    assert meter.peak_by_kind["gradients"] == 4 * num_parameters


@pytest.mark.parametrize("variant", [{"foreach": True}, {"foreach": False}, {"fused": True}])
def test_every_implementation_of_adam_is_seen_alike(variant):
    model = nn.Linear(10, 10)
    optimizer = torch.optim.AdamW(model.parameters(), **variant)
    with memory_meter(model, optimizer) as meter:
        for _ in range(2):
            model(torch.ones(2, 10)).sum().backward()
            optimizer.step()
    assert meter.now_by_kind["optimizer_state"] == 8 * 110 + 2 * 4
    assert meter.now_by_kind["gradients"] == 4 * 110


def test_master_copies_in_the_optimizer_are_optimizer_state():
    model = nn.Linear(10, 10).half()
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=0.1, momentum=0.9)
    with memory_meter(model, optimizer) as meter:
        for master in masters:
            master.grad = torch.ones_like(master)
        optimizer.step()
    assert meter.now_by_kind["parameters"] == 2 * 110
    assert meter.now_by_kind["gradients"] == 4 * 110
    assert meter.now_by_kind["optimizer_state"] == (4 + 4) * 110


def test_without_a_module_the_optimizers_parameters_are_the_parameters():
    parameter = nn.Parameter(torch.ones(10))
    with memory_meter(optimizer=torch.optim.SGD([parameter])) as meter:
        pass
    assert meter.now_by_kind == dict.fromkeys(KINDS, 0) | {"parameters": 40}


def test_the_same_step_gives_the_same_bytes_every_time():
    model, optimizer = new_gpt()
    batch = text_batch(4, 64)
    train_once(model, optimizer, batch)
    readings = []
    for _ in range(3):
        with memory_meter(model, optimizer) as meter:
            train_once(model, optimizer, batch)
        readings.append((meter.peak, meter.by_kind, [kinds for _, kinds in meter.curve]))
    assert readings[0] == readings[1] == readings[2]


@pytest.mark.parametrize(
    ("make", "unseen_bytes"),
    [
        (lambda: (GPT(), text_batch(4, 64)), 2 * 8),  # a wrapped sqrt(head_dim) in each layer
        (lambda: (ConvNet(), digits_batch(16)), 2 * 32 * 4),  # BatchNorm's scratch, 32 channels
    ],
)
def test_the_peak_is_what_pytorchs_profiler_saw_without_a_meter(make, unseen_bytes):
    torch.manual_seed(0)
    model, batch = make()
    optimizer = torch.optim.AdamW(model.parameters())
    train_once(model, optimizer, batch)
    with memory_meter(model, optimizer) as meter:
        train_once(model, optimizer, batch)
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu, profile_memory=True) as profile:
        train_once(model, optimizer, batch)
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    total = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        total += event.nbytes()
        peak = max(peak, total)
    born = meter.peak - meter.curve[0][1]["parameters"]
    born -= meter.curve[0][1]["buffers"] + meter.curve[0][1]["optimizer_state"]
    assert 0 <= peak - born <= unseen_bytes


def test_recomputation_is_seen_to_save_memory():
    model, _ = new_gpt(layers=4)
    inputs, targets = text_batch(4, 64)

    def loss(run_block):
        x = model.embed(inputs)
        for block in model.blocks:
            x = run_block(block, x)
        return nn.functional.cross_entropy(model.unembed(x).flatten(0, 1), targets.flatten())

    held = []
    for run_block in (
        lambda block, x: block(x),
        lambda block, x: checkpoint(block, x, use_reentrant=False),
    ):
        with memory_meter(model) as meter:
            value = loss(run_block)
            held.append(meter.now_by_kind["activations"])
            value.backward()
            assert meter.now_by_kind["activations"] == 4
        model.zero_grad()
    kept_by_a_block = 4 * (16 * 64 * 4 * 64 + 4 * 64 * 4 + 4 * 64 * 64 * 4)
    kept_of_a_block = 4 * 64 * 4 * 64  # its input
    assert held[0] - held[1] >= 4 * (kept_by_a_block - kept_of_a_block) - 4 * 2**13
    assert held[1] < held[0] / 3


def test_the_curve_rises_in_time_and_ends_at_now():
    model, optimizer = new_gpt()
    batch = text_batch(2, 16)
    with memory_meter(model, optimizer) as meter:
        train_once(model, optimizer, batch)
    seconds = [at for at, _ in meter.curve]
    assert seconds == sorted(seconds)
    assert all(tuple(kinds) == KINDS and min(kinds.values()) >= 0 for _, kinds in meter.curve)
    totals = [sum(kinds.values()) for _, kinds in meter.curve]
    assert max(totals) == meter.peak
    assert totals[-1] == meter.now


def test_two_ranks_each_meter_their_own_tensors():
    def worker(group):
        import torch

        from pedagogy.measure import memory_meter

        with memory_meter() as meter:
            x = torch.ones(1000 * (group.rank + 1))
            group.all_reduce_(x[:1000])
            return meter.now, meter.peak

    assert list(launch(worker, 2)) == [(4000, 4000), (8000, 8000)]


def test_sharded_wrappers_are_opened_and_count_only_what_this_rank_holds():
    def worker(group):
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor

        from pedagogy.measure import memory_meter

        mesh = init_device_mesh("cpu", (group.size,))
        model = torch.nn.Linear(8, 8, bias=False)
        model.weight = torch.nn.Parameter(distribute_tensor(model.weight.data, mesh, [Shard(0)]))
        optimizer = torch.optim.Adam(model.parameters())
        with memory_meter(model, optimizer) as meter:
            (model.weight * model.weight).sum().full_tensor().backward()
            optimizer.step()
        return meter.now_by_kind

    shard_bytes = 4 * 8 * 8 // 2
    for kinds in launch(worker, 2):
        assert kinds["parameters"] == kinds["gradients"] == shard_bytes
        assert kinds["optimizer_state"] == 2 * shard_bytes + 4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_peak_is_the_allocators_with_each_storage_rounded_to_512():
    model = nn.Sequential(*[nn.Linear(256, 256, bias=False) for _ in range(4)]).cuda()
    x = torch.ones(256, 256, device="cuda")
    model(x).sum().backward()  # the matrix-product library takes its workspace here
    model.zero_grad()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with memory_meter(model, device="cuda") as meter:
        model(x).sum().backward()
    peak = torch.cuda.max_memory_allocated() - before
    born = meter.peak - meter.curve[0][1]["parameters"]
    assert abs(peak - born) <= 4 * 512  # two scalars live at the peak, each rounded up
