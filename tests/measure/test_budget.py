"""A limit that is enforced, with PyTorch's own exception type."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pedagogy.measure import BudgetExceeded, DeviceBudget, memory_meter
from pedagogy.workloads import GPT, text_batch


def test_a_block_within_its_budget_runs_and_is_metered():
    with DeviceBudget(400) as budget:
        x = torch.zeros(100)
    assert budget.peak == x.nbytes == 400


def test_one_byte_too_many_fails_as_on_a_gpu():
    with (
        pytest.raises(torch.OutOfMemoryError, match="404, 4 over the budget of 400"),
        DeviceBudget(400),
    ):
        torch.zeros(101)


def test_the_error_lists_what_is_live_by_kind():
    model = nn.Linear(10, 10)
    pattern = r"Live by kind: parameters 440, activations 4,000\."
    with pytest.raises(BudgetExceeded, match=pattern), DeviceBudget(1000, model):
        torch.zeros(1000)


def test_a_module_that_does_not_fit_fails_on_entry_and_leaves_no_meter_behind():
    model = nn.Linear(10, 10)
    budget = DeviceBudget(439, model)
    with pytest.raises(BudgetExceeded, match="module and optimizer brought the live bytes to 440"):
        budget.__enter__()
    torch.zeros(1000)  # not metered any more
    assert budget.peak == 440


def test_a_sparse_parameter_that_does_not_fit_fails_on_entry_too():
    model = nn.Module()
    model.weight = nn.Parameter(torch.eye(3).to_sparse())
    pattern = "module and optimizer brought the live bytes to 60"
    with pytest.raises(BudgetExceeded, match=pattern), DeviceBudget(59, model):
        pass


@pytest.mark.parametrize("spare", [0, 1])
def test_a_training_step_needs_exactly_its_peak(spare):
    torch.manual_seed(0)
    model = GPT()
    batch = text_batch(2, 32)
    with memory_meter(model) as meter:
        model.loss(*batch).backward()
    model.zero_grad()
    with DeviceBudget(meter.peak, model):
        model.loss(*batch).backward()
    model.zero_grad()
    with pytest.raises(BudgetExceeded), DeviceBudget(meter.peak - 1 - spare, model):
        model.loss(*batch).backward()


def test_a_failure_inside_backward_arrives_as_itself():
    x = torch.ones(1000, requires_grad=True)

    def step():
        y = (x * torch.full((1000,), 2.0)).sum()  # at most 8,004 bytes live, then 4,004
        y.backward()  # 4 more for the gradient of y, 4,000 for that of x

    with pytest.raises(BudgetExceeded, match=r"mul.Tensor brought the live bytes to 8,008"):  # noqa: SIM117
        with DeviceBudget(8_004):
            step()


def test_code_that_halves_its_batch_on_out_of_memory_works_here_too():
    def largest_batch(budget_bytes):
        batch = 64
        while True:
            try:
                with DeviceBudget(budget_bytes):
                    torch.ones(batch, 100)
                return batch
            except torch.OutOfMemoryError:
                batch //= 2

    assert [largest_batch(b) for b in (25_600, 25_599, 3_200)] == [64, 32, 8]


@torch.library.custom_op("pedagogy_tests::take_from_a_full_device", mutates_args=())
def take_from_a_full_device(x: torch.Tensor) -> torch.Tensor:
    """An operation whose memory an allocator refuses."""
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")


def test_the_allocators_error_says_what_is_live_by_kind_too():
    model = nn.Linear(10, 10)
    pattern = (
        r"refused the operation pedagogy_tests.take_from_a_full_device.default, in a budget of "
        r"9,000 bytes. Live by kind: parameters 440, activations 400\. .*Tried to allocate"
    )

    def step():
        x = torch.zeros(100)
        return take_from_a_full_device(x)

    with pytest.raises(BudgetExceeded, match=pattern) as raised, DeviceBudget(9000, model):
        step()
    assert type(raised.value.__cause__) is torch.OutOfMemoryError


def test_an_allocation_outside_of_operations_is_translated_when_the_block_ends():
    with (
        pytest.raises(BudgetExceeded, match="refused something that is no operation"),
        DeviceBudget(9000),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory.")


def test_in_a_roomy_budget_inside_a_small_one_the_small_ones_error_arrives_as_it_is():
    with (
        pytest.raises(BudgetExceeded, match="400 over the budget of 0") as raised,
        DeviceBudget(0),
        DeviceBudget(9000),
    ):
        torch.zeros(100)
    assert raised.value.__cause__ is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_budget_for_a_gpu_that_is_not_there_fails_and_leaves_no_meter_behind():
    depth = torch._C._len_torch_dispatch_stack()
    with (
        pytest.raises((AssertionError, RuntimeError), match=r"CUDA|NVIDIA"),
        DeviceBudget(9, device="cuda"),
    ):
        pass
    assert torch._C._len_torch_dispatch_stack() == depth


def test_other_errors_pass():
    with pytest.raises(ZeroDivisionError), DeviceBudget(9000):
        1 // 0  # noqa: B018


@pytest.mark.gpu
def test_on_a_gpu_the_allocator_has_no_more_than_the_budget_while_the_block_runs():
    limit = 64 * 2**20
    torch.cuda.empty_cache()
    with DeviceBudget(limit, device="cuda"):
        x = torch.zeros(2**20, device="cuda")
        assert torch.cuda.memory_reserved() <= limit
        with pytest.raises(BudgetExceeded, match="the allocator refused the operation"):
            torch.zeros(limit, device="cuda")
    del x
    y = torch.zeros(1, device="cuda")
    with (
        pytest.raises(BudgetExceeded, match="something that is no operation"),
        DeviceBudget(limit, device="cuda"),
    ):
        y.untyped_storage().resize_(2 * limit)
    torch.zeros(limit, device="cuda")  # restored: 256 MiB


def test_a_negative_budget_is_refused():
    with pytest.raises(ValueError, match="-1 bytes"):
        DeviceBudget(-1)
