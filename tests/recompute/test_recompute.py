"""Recomputation against the plain call, PyTorch's own, and a dynamic program."""

import copy
from functools import cache

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as pytorchs

from pedagogy.costs import published
from pedagogy.data_parallel import DataParallel
from pedagogy.measure import memory_meter
from pedagogy.ranks import launch
from pedagogy.recompute import (
    CheckpointFunction,
    checkpoint,
    checkpoint_sequential,
    longest_chain,
    optimal_forwards,
)
from pedagogy.recompute.evidence import executed_units
from pedagogy.workloads import GPT, ConvNet, digits_batch, text_batch


def block(seed=0, dropout=0.3):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Dropout(dropout), nn.Linear(9, 6))


def run(call, module, x):
    """Output, gradients, and what the stream of random numbers gives next."""
    torch.manual_seed(3)
    module.zero_grad()
    x = x.detach().clone().requires_grad_(x.requires_grad)
    output = call(module, x)
    output.square().sum().backward()
    gradients = [p.grad.clone() for p in module.parameters()]
    return output.detach(), x.grad, gradients, torch.rand(3)


def assert_same(mine, right):
    for a, b in zip(mine, right, strict=True):
        if isinstance(a, list):
            assert_same(a, b)
        else:
            assert (a is None and b is None) or torch.equal(a, b)


@pytest.mark.parametrize("needs", [True, False])
def test_it_equals_the_plain_call_and_pytorchs_to_the_bit(needs):
    module, x = block(), torch.randn(5, 6).requires_grad_(needs)
    plain = run(lambda m, x: m(x), module, x)
    assert_same(run(checkpoint, module, x), plain)
    assert_same(run(lambda m, x: pytorchs(m, x, use_reentrant=False), module, x), plain)


def test_the_function_for_understanding_equals_it_where_inputs_need_gradients():
    module, x = block(dropout=0.0), torch.randn(5, 6, requires_grad=True)
    assert_same(run(CheckpointFunction.apply, module, x), run(lambda m, x: m(x), module, x))


def test_C27_dropout_draws_the_same_mask_again():
    drawn = []

    def noted(x):
        mask = nn.functional.dropout(torch.ones_like(x))
        drawn.append(mask)
        return x.exp() * mask

    torch.manual_seed(0)
    x = torch.zeros(64, requires_grad=True)
    checkpoint(noted, x).sum().backward()
    assert len(drawn) == 2
    assert torch.equal(*drawn)
    assert torch.equal(x.grad, drawn[0])


def test_C29_weights_get_their_gradient_where_no_input_needs_one():
    layer = nn.Linear(2, 2)
    checkpoint(layer, torch.ones(1, 2)).sum().backward()
    assert layer.weight.grad.tolist() == [[1, 1], [1, 1]]


def test_batch_norm_counts_a_batch_once_where_pytorchs_counts_it_twice():
    plain = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU())
    mine, theirs = copy.deepcopy(plain), copy.deepcopy(plain)
    x = torch.randn(8, 6, requires_grad=True)
    plain(x).sum().backward()
    checkpoint(mine, x).sum().backward()
    pytorchs(theirs, x, use_reentrant=False).sum().backward()
    for a, b in zip(mine.buffers(), plain.buffers(), strict=True):
        assert torch.equal(a, b)
    assert mine[1].num_batches_tracked == 1
    assert theirs[1].num_batches_tracked == 2
    assert not torch.equal(theirs[1].running_mean, plain[1].running_mean)


def test_nested_calls_run_each_stretch_again_and_keep_no_inner_input():
    calls = {"inner": 0, "outer": 0}
    first, second = block(0), block(1)

    def inner(x):
        calls["inner"] += 1
        return second(x)

    def outer(x):
        calls["outer"] += 1
        return checkpoint(inner, first(x))

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([first, second])

    x = torch.randn(5, 6, requires_grad=True)
    plain = run(lambda m, x: second(first(x)), Both(), x)
    assert_same(run(lambda m, x: checkpoint(outer, x), Both(), x), plain)
    assert calls == {"outer": 2, "inner": 2}  # outer stops where inner begins


def test_it_takes_other_arguments_and_several_outputs():
    def split(x, scale, names):
        return {names[0]: x.sin() * scale, names[1]: x.cos()}

    x = torch.randn(4, requires_grad=True)
    output = checkpoint(split, x, 2.0, ("a", "b"))
    (output["a"].sum() + output["b"].sum()).backward()
    torch.testing.assert_close(x.grad, 2 * x.cos() - x.sin())


def test_autocast_is_as_in_the_first_run():
    module, x = block(), torch.randn(5, 6, requires_grad=True)

    def call(how):
        def under(m, x):
            with torch.autocast("cpu", torch.bfloat16):
                return how(m, x)

        return under

    assert_same(run(call(checkpoint), module, x), run(call(lambda m, x: m(x)), module, x))


def test_a_function_that_computes_something_else_the_second_time_is_refused():
    calls = []

    def fickle(x):
        calls.append(1)
        return x.exp().sin() if len(calls) == 1 else x.exp()

    x = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="saved 2 tensors at first and 1"):
        checkpoint(fickle, x).sum().backward()


def test_without_gradients_it_is_the_plain_call_and_two_backwards_work():
    module, x = block(dropout=0.0), torch.randn(5, 6, requires_grad=True)
    with torch.no_grad():
        assert torch.equal(checkpoint(module, x), module(x))
    loss = checkpoint(module, x).sum()
    loss.backward(retain_graph=True)
    once = x.grad.clone()
    loss.backward()
    torch.testing.assert_close(x.grad, 2 * once)


@pytest.mark.parametrize("segments", [1, 2, 3, 4])
def test_segments_of_a_gpt_equal_the_whole_and_hold_less(segments):
    torch.manual_seed(0)
    model = GPT(layers=4, hidden=32, heads=2, sequence=32).double()
    inputs, targets = text_batch(4, 32)

    def loss(how):
        model.zero_grad()
        logits = model.unembed(how(model.embed(inputs)))
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    peaks, gradients = [], []
    for how in (
        lambda x: nn.Sequential(*model.blocks)(x),
        lambda x: checkpoint_sequential(model.blocks, segments, x),
    ):
        with memory_meter(model) as meter:
            loss(how).backward()
        peaks.append(meter.peak)
        gradients.append([p.grad.clone() for p in model.parameters()])
    assert_same(*gradients)
    assert peaks[1] < peaks[0] if segments > 1 else peaks[1] == peaks[0]


def test_a_conv_net_in_segments_keeps_its_statistics():
    torch.manual_seed(0)
    plain = ConvNet()
    cut = copy.deepcopy(plain)
    images, labels = digits_batch(16)
    cut_logits = cut.classifier(checkpoint_sequential(cut.features, 3, images).mean((2, 3)))
    for model, logits in ((plain, plain(images)), (cut, cut_logits)):
        nn.functional.cross_entropy(logits, labels).backward()
        model.logits = logits.detach()
    assert torch.equal(plain.logits, cut.logits)
    assert_same([b.clone() for b in cut.buffers()], [b.clone() for b in plain.buffers()])
    assert_same([p.grad for p in cut.parameters()], [p.grad for p in plain.parameters()])


def averaged(group):
    module = block(dropout=0.0)
    wrapped = DataParallel(group, nn.ModuleList([module]))
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(group.rank))
    wrapped.module.forward = lambda x: checkpoint(module, x)
    wrapped(x).sum().backward()
    return [p.grad for p in module.parameters()]


def test_data_parallels_hooks_see_the_gradients():
    xs = [torch.randn(5, 6, generator=torch.Generator().manual_seed(rank)) for rank in (0, 1)]
    module = block(dropout=0.0)
    (sum(module(x).sum() for x in xs) / 2).backward()
    for gradients in launch(averaged, 2):
        torch.testing.assert_close(gradients, [p.grad for p in module.parameters()])


# --- how few forwards -------------------------------------------------------------------------


@cache
def fewest(layers, slots):
    """By trying every place of the next kept activation; the input has one of the slots."""
    if layers == 1:
        return 0
    if slots == 1:
        return layers * (layers - 1) // 2
    return min(
        first + fewest(layers - first, slots - 1) + fewest(first, slots)
        for first in range(1, layers)
    )


def test_the_binomial_optimum_is_that_of_the_dynamic_program():
    for layers in range(1, 40):
        for slots in range(1, 6):
            assert optimal_forwards(layers, slots) == fewest(layers, slots), (layers, slots)


def test_a_slot_is_one_activation_at_the_peak_however_long_the_chain():
    least = executed_units(8, 1)
    for layers, slots in ((8, 3), (16, 1), (16, 4), (33, 2), (33, 6)):
        assert executed_units(layers, slots) == least + slots - 1


def test_the_published_counts():
    assert longest_chain(10, 6) == 8008
    for row in published.table("revolve_counts").rows:
        layers, slots = row["l_steps"], row["c_checkpoints"]
        assert optimal_forwards(layers, slots) == row["t_min_forward_steps"]
        assert longest_chain(slots, row["r_repetitions"]) == row["beta_c_r"]


def test_bad_numbers_are_refused():
    with pytest.raises(ValueError, match="5 segments of 2 layers"):
        checkpoint_sequential([nn.Identity()] * 2, 5, torch.ones(1))
    with pytest.raises(ValueError, match="10 layers, 0 slots"):
        optimal_forwards(10, 0)
