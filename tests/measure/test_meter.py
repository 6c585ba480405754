"""The memory meter, tensor by tensor: bytes that can be counted by hand."""

from __future__ import annotations

import copy
import gc
import io

import pytest
import torch
from torch import nn

from pedagogy.measure import KINDS, memory_meter
from pedagogy.workloads import GPT


def test_bytes_come_with_a_tensor_and_go_with_it():
    with memory_meter() as meter:
        a = torch.zeros(100)
        b = torch.zeros(50, dtype=torch.float64)
        assert meter.now == 800
        del a
        assert meter.now == 400
        del b
        assert meter.now == 0
    assert meter.peak == 800
    assert meter.by_kind == dict.fromkeys(KINDS, 0) | {"activations": 800}


def test_views_share_the_bytes_of_their_base_and_keep_them_alive():
    with memory_meter() as meter:
        base = torch.zeros(10, 10)
        views = [base.t(), base[2:4], base.view(100), base.detach(), base.expand(3, 10, 10)]
        assert meter.now == 400
        del base
        assert meter.now == 400
        del views
        assert meter.now == 0


def test_what_was_there_before_is_not_counted_even_when_used():
    old = torch.zeros(1000)
    with memory_meter() as meter:
        views = old.view(10, 100).t(), old.detach()
        old.add_(1)
        new = old * 2
        assert meter.now == new.nbytes == 4000
    assert len(views) == 2


def test_tensors_made_from_python_numbers_count():
    with memory_meter() as meter:
        x = torch.tensor([1, 2, 3])
        assert meter.now == x.nbytes == 24


def test_a_resized_storage_has_its_new_size():
    with memory_meter() as meter:
        x = torch.zeros(10)
        x.resize_(100)
        assert meter.now == 400
        x.untyped_storage().resize_(0)
        assert meter.now == 0


def test_an_older_tensor_that_an_operation_resizes_counts_from_then_on():
    grown, written = torch.empty(0), torch.empty(100)
    with memory_meter() as meter:
        torch.ones(100, out=written)
        assert meter.now == 0
        torch.ones(100, out=grown)
        assert meter.now == 400
        grown.resize_(200)
        assert meter.now == 800


def test_a_deep_copy_counts_and_its_older_original_does_not():
    original = torch.ones(100, 100)
    with memory_meter() as meter:
        copied = copy.deepcopy(original)
        assert meter.now == copied.nbytes == 40_000
        copy.deepcopy(copied)
        assert meter.now == 40_000


def test_a_loaded_tensor_counts_once_for_all_its_views():
    x = torch.ones(1000)
    file = io.BytesIO()
    torch.save([x, x[:10]], file)
    file.seek(0)
    with memory_meter() as meter:
        loaded = torch.load(file)
        assert meter.now == loaded[0].nbytes == 4000


@pytest.mark.filterwarnings("ignore:Sparse")  # such tensors are in beta state, PyTorch says
def test_a_sparse_tensor_has_the_bytes_of_its_indices_and_values():
    older = torch.eye(5).to_sparse()
    with memory_meter() as meter:
        listed = torch.eye(3).to_sparse()
        assert meter.now == 2 * 3 * 8 + 3 * 4
        by_row = torch.sparse_csr_tensor(torch.arange(4), torch.arange(3), torch.ones(3))
        views = older.indices(), by_row.values()
        assert meter.now == (2 * 3 * 8 + 3 * 4) + (4 * 8 + 3 * 8 + 3 * 4)
        del listed
        assert meter.now == 4 * 8 + 3 * 8 + 3 * 4
    assert len(views) == 2


def test_sparse_gradients_are_gradients():
    table = nn.Embedding(10, 4, sparse=True)
    with memory_meter(table) as meter:
        table(torch.tensor([1, 2])).sum().backward()
        assert meter.now_by_kind["gradients"] == 2 * 8 + 2 * 4 * 4
        assert meter.now_by_kind["parameters"] == 160


def test_a_tensor_without_a_storage_is_passed_over():
    with memory_meter() as meter:
        x = torch.ones(10, 10).to_mkldnn()
        assert meter.now == 0
        assert x.to_dense().nbytes == meter.peak == 400


def test_the_parameters_of_a_lazy_module_count_when_they_get_their_shape():
    model = nn.LazyLinear(4)
    with memory_meter(model, torch.optim.SGD(model.parameters())) as meter:
        assert meter.now == 0
        model(torch.ones(2, 3))
        assert meter.now_by_kind["parameters"] == 4 * (4 * 3 + 4)


def test_meta_tensors_hold_no_memory():
    with memory_meter() as meter:
        x = torch.empty(1000, device="meta") + 1
    assert (meter.peak, x.nbytes) == (0, 4000)


def test_what_autograd_keeps_for_backward_counts_until_backward_frees_it():
    with memory_meter() as meter:
        x = torch.ones(1000, requires_grad=True)
        y = x.exp().sum()  # exp keeps its output, 4,000 bytes, which has no name here
        assert meter.now == 4000 + 4000 + 4
        y.backward()
        assert meter.now == 4000 + 4 + x.grad.nbytes


def test_tied_parameters_count_once():
    tied, untied = GPT(), GPT(tied=False)
    with memory_meter(tied) as meter_tied, memory_meter(untied) as meter_untied:
        pass
    difference = meter_untied.now - meter_tied.now
    assert difference == 4 * 256 * 64
    assert meter_tied.now_by_kind["parameters"] == 4 * sum(p.numel() for p in tied.parameters())


def test_parameters_that_are_freed_and_refilled_are_followed():
    model = nn.Linear(10, 10, bias=False)
    with memory_meter(model) as meter:
        model.weight.data = torch.empty(0)
        assert meter.now_by_kind["parameters"] == 0
        model.weight.data = torch.ones(10, 10)
        assert meter.now_by_kind["parameters"] == 400
        model.weight.untyped_storage().resize_(0)
        assert meter.now == 0


def test_nested_meters_each_count_what_is_born_inside_them():
    with memory_meter() as outer:
        a = torch.zeros(10)
        with memory_meter() as inner:
            b = torch.zeros(100)
        c = a + b[:10]
    assert inner.peak == 400
    assert outer.peak == outer.now == 40 + 400 + 40
    assert c.shape == (10,)


def test_figures_freeze_when_the_block_ends():
    with memory_meter() as meter:
        x = torch.zeros(10)
    y = torch.zeros(1000)
    del x
    assert meter.now == meter.peak == 40
    assert y.nbytes == 4000


def test_a_meter_lets_go_of_everything_when_its_block_fails():
    def fail():
        with memory_meter() as meter:
            x = torch.zeros(10)
            raise KeyError(meter, x.shape)

    with pytest.raises(KeyError):
        fail()
    gc.collect()
    with memory_meter() as meter:
        x = torch.zeros(10)
    assert meter.peak == x.nbytes


def test_a_meter_serves_one_block_only():
    meter = memory_meter()
    with meter:
        pass
    with pytest.raises(RuntimeError, match="make a new one"), meter:
        pass


def test_of_equal_peaks_the_first_is_described():
    layer = nn.Linear(10, 10, bias=False)
    with memory_meter(layer) as meter:
        x = torch.zeros(10, 10)
        layer.weight.grad = x
        assert meter.now_by_kind["gradients"] == 400
    assert meter.peak == meter.now == 800
    assert meter.by_kind["activations"] == 400
    assert meter.peak_by_kind["gradients"] == 400
