"""Column and row parallel linear layers equal `nn.Linear`: three steps, every variant."""

import functools
import itertools
import sys

import cloudpickle
import pytest
import torch
from torch import nn

from pedagogy.ranks import launch
from pedagogy.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    check_divides,
    gather_linear,
)
from tests.tensor_parallel.cutting import random

cloudpickle.register_pickle_by_value(sys.modules[__name__])

IN, OUT, TOKENS = 12, 24, 5
GRADIENTS = {  # of the output, (tokens, out): dense, transposed, expanded
    "dense": lambda step: random(100 + step, TOKENS, OUT),
    "transposed": lambda step: random(100 + step, OUT, TOKENS).t(),
    "expanded": lambda step: torch.tensor(0.5 + step, dtype=torch.float64).expand(TOKENS, OUT),
}
# kind, bias, the whole input or output on every rank, gradient, what is frozen
VARIANTS = list(
    itertools.product(("column", "row"), (True, False), (True, False), GRADIENTS, (None,))
) + [
    (kind, True, whole, "dense", frozen)
    for kind in ("column", "row")
    for whole in (True, False)
    for frozen in ("weight", "bias", "input")
]


def make_linear(seed, bias, frozen):
    """The ordinary layer; other weights for each seed."""
    torch.manual_seed(seed)
    linear = nn.Linear(IN, OUT, bias).double()
    if frozen in ("weight", "bias"):
        getattr(linear, frozen).requires_grad_(False)
    return linear


def make_input(step, frozen):
    """A transposed view, as an attention's output is one."""
    return random(step, IN, TOKENS).t().requires_grad_(frozen != "input")


def cut(group, kind, linear, whole):
    """The layer on this rank."""
    if kind == "column":
        return ColumnParallelLinear.from_linear(group, linear, gather_output=whole)
    return RowParallelLinear.from_linear(group, linear, input_is_parallel=not whole)


def steps(layer, frozen, gradient, take_input=lambda x: x, take_gradient=lambda g: g):
    """Three steps of SGD with momentum: outputs, gradients of inputs and of parameters."""
    trained = [p for p in layer.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9)
    notes = []
    for step in range(3):
        x = make_input(step, frozen)
        y = layer(take_input(x))
        y.backward(take_gradient(GRADIENTS[gradient](step)))
        notes.append((y.detach(), x.grad, [p.grad for p in layer.parameters()]))
        optimizer.step()
        optimizer.zero_grad()
    return notes


def part(group, whole):
    """This rank's slice of the last dimension, unless all of it is needed."""
    return (lambda t: t) if whole else (lambda t: t.chunk(group.size, -1)[group.rank])


def train_variants(group):
    """The notes and the layer put together, of every variant."""
    torch.set_num_threads(1)
    found = []
    for kind, bias, whole, gradient, frozen in VARIANTS:
        layer = cut(group, kind, make_linear(group.rank, bias, frozen), whole)
        take = {"take_gradient" if kind == "column" else "take_input": part(group, whole)}
        notes = steps(layer, frozen, gradient, **take)
        found.append((notes, gather_linear(group, layer)))
    return found


@functools.cache
def run_of(world_size):
    """One launch for each number of ranks."""
    return launch(train_variants, world_size)


def compare(actual, expected):
    """Equal to rounding; None where there is no gradient."""
    assert (actual is None) == (expected is None)
    if expected is not None:
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


def compare_parameters(kind, ranks, expected):
    """A cut tensor is the ranks' shards together, a whole one equal on all of them."""
    dims = {"column": (0, 0), "row": (1, None)}[kind]
    for index, (dim, right) in enumerate(zip(dims, expected, strict=False)):
        shards = [tensors[index] for tensors in ranks]
        if dim is None or right is None:
            for shard in shards:
                compare(shard, right)
        else:
            compare(torch.cat(shards, dim), right)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("variant", range(len(VARIANTS)), ids=lambda i: str(VARIANTS[i]))
def test_a_cut_layer_trains_as_the_whole_one(variant, world_size):
    kind, bias, whole, gradient, frozen = VARIANTS[variant]
    linear = make_linear(0, bias, frozen)
    expected = steps(linear, frozen, gradient)
    ranks = [rank[variant] for rank in run_of(world_size)]
    for step, (y, x_gradient, gradients) in enumerate(expected):
        notes = [rank_notes[step] for rank_notes, _ in ranks]
        if kind == "column" and not whole:
            compare(torch.cat([note[0] for note in notes], -1), y)
        else:
            for note in notes:
                compare(note[0], y)
        if kind == "row" and not whole and x_gradient is not None:
            x_gradients = [sum(note[1] for note in notes)]  # each rank has its slice, and zeros
        else:
            x_gradients = [note[1] for note in notes]
        for found in x_gradients:
            compare(found, x_gradient)
        compare_parameters(kind, [note[2] for note in notes], gradients)
    for _, gathered in ranks:
        for name, parameter in linear.named_parameters():
            compare(gathered.get_parameter(name), parameter)


def construct(group):
    """Layers made by their constructors; torch was seeded by the rank."""
    torch.manual_seed(group.rank)
    column = ColumnParallelLinear(group, 3, 8)
    torch.manual_seed(group.rank)
    row = RowParallelLinear(group, 8, 3, bias=False)
    return gather_linear(group, column), gather_linear(group, row)


@pytest.mark.parametrize("world_size", [1, 4])
def test_a_new_layer_is_cut_from_rank_0s_whatever_the_other_seeds(world_size):
    torch.manual_seed(0)
    column = nn.Linear(3, 8)
    torch.manual_seed(0)
    row = nn.Linear(8, 3, bias=False)
    for found_column, found_row in launch(construct, world_size):
        assert torch.equal(found_column.weight, column.weight)
        assert torch.equal(found_column.bias, column.bias)
        assert torch.equal(found_row.weight, row.weight)
        assert found_row.bias is None


def sent_by_a_pair(group):
    """Events of a column and a row layer in a row, forward and backward."""
    first, second = ColumnParallelLinear(group, 8, 12), RowParallelLinear(group, 12, 4)
    x = torch.zeros(5, 8, requires_grad=True)
    marks = [len(group.events)]
    y = second(torch.relu(first(x)))
    marks.append(len(group.events))
    y.sum().backward()
    return [[(e.kind, e.nbytes) for e in events] for events in (
        group.events[marks[0] : marks[1]], group.events[marks[1] :])]  # fmt: skip


@pytest.mark.parametrize("n", [2, 4])
def test_two_layers_in_a_row_need_one_all_reduce_each_way(n):
    for forward, backward in launch(sent_by_a_pair, n):
        assert forward == [("all_reduce", 2 * (n - 1) * 4 * 5 * 4 // n)]  # the output
        assert backward == [("all_reduce", 2 * (n - 1) * 4 * 5 * 8 // n)]  # the input's gradient


def refused(group):
    """What each refusal says, and how much was sent."""
    wrong = [
        lambda: ColumnParallelLinear(group, 4, 64),
        lambda: ColumnParallelLinear.from_linear(group, nn.Linear(4, 64)),
        lambda: RowParallelLinear(group, 2, 4),
        lambda: RowParallelLinear.from_linear(group, nn.Linear(8, 4)),
    ]
    messages = []
    for call in wrong:
        with pytest.raises(ValueError, match="ranks do not divide") as caught:
            call()
        messages.append(str(caught.value))
    return messages, len(group.events)


def test_sizes_that_the_ranks_do_not_divide_are_refused_before_anything_is_sent():
    for messages, sent in launch(refused, 3):
        assert messages == [
            "out_features is 64, which 3 ranks do not divide; 63 or 66 would do",
            "out_features is 64, which 3 ranks do not divide; 63 or 66 would do",
            "in_features is 2, which 3 ranks do not divide; 3 would do",
            "in_features is 8, which 3 ranks do not divide; 6 or 9 would do",
        ]
        assert sent == 0


def test_sizes_can_be_checked_where_no_rank_stands_yet():
    check_divides(4, heads=8, hidden=64)
    with pytest.raises(ValueError, match="hidden is 64, which 3 ranks do not divide; 63 or 66"):
        check_divides(3, heads=9, hidden=64)
