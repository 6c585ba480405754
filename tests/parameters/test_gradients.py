"""Gradients that only some ranks have: filled where another rank has one, summed in place."""

import sys

import cloudpickle
import pytest
import torch
from torch import nn

from pedagogy.parameters import check_dense, fill_gradients, sum_gradients
from pedagogy.ranks import launch

cloudpickle.register_pickle_by_value(sys.modules[__name__])

FROZEN_WITH_GRADIENT = 7.0


def parameters(group):
    """Seven of them, by who has a gradient.

    0 all, 1 rank 0, 2 the last rank (of 2 by 3, transposed), 3 nobody, 4 frozen, 5 fp16 on rank 1,
    6 is 0 again.
    """
    shapes = [(2,), (3,), (2, 3), (4,), (2,), (5,)]
    found = [nn.Parameter(torch.ones(shape)) for shape in shapes]
    found[5] = nn.Parameter(found[5].detach().half())
    found[0].grad = torch.full((2,), 1.0 + group.rank)
    if group.rank == 0:
        found[1].grad = torch.tensor([1.0, 2.0, 3.0])
    if group.rank == group.size - 1:
        found[2].grad = torch.arange(6.0).view(3, 2).t()
    found[4].requires_grad_(False).grad = torch.full((2,), FROZEN_WITH_GRADIENT)
    if group.rank == 1 % group.size:
        found[5].grad = torch.full((5,), 0.5).half()
    return [*found, found[0]]


def fill_and_sum(group):
    """What is filled, and the sums; then what was sent."""
    held = parameters(group)
    filled = fill_gradients(group, held)
    before = [None if p.grad is None else p.grad.clone() for p in held]
    chosen = [next(i for i, p in enumerate(held) if p is one) for one in filled]
    summed = parameters(group)
    start = len(group.events)
    objects = [id(p.grad) for p in summed if p.grad is not None]
    sum_gradients(group, summed)
    kept = set(objects) <= {id(p.grad) for p in summed if p.grad is not None}
    after = [p.grad for p in summed]
    sizes = [event.nbytes for event in group.events[start:]]
    return before, chosen, after, kept, sizes, fill_gradients(group, [])


@pytest.fixture(scope="module", params=[1, 2, 3])
def ran(request):
    """The world size and every rank's findings."""
    return request.param, list(launch(fill_and_sum, request.param))


def test_where_some_rank_has_a_gradient_the_others_get_zero_of_its_shape_and_dtype(ran):
    size, ranks = ran
    for rank, (before, chosen, *_, nothing) in enumerate(ranks):
        assert chosen == [0, 1, 2, 5]  # each once, in order, without the frozen one
        assert nothing == []
        expected_1 = [1, 2, 3] if rank == 0 else [0, 0, 0]
        expected_2 = [[0, 2, 4], [1, 3, 5]] if rank == size - 1 else [[0] * 3] * 2
        assert before[0].tolist() == [1 + rank] * 2
        assert before[1].tolist() == expected_1
        assert before[2].tolist() == expected_2
        assert before[5].tolist() == [0.5 if rank == 1 % size else 0] * 5
        assert before[5].dtype == torch.float16


def test_where_no_rank_has_one_it_stays_none_and_a_frozen_parameter_is_left_alone(ran):
    for before, _, after, *_ in ran[1]:
        for grads in (before, after):
            assert grads[3] is None
            assert grads[4].tolist() == [FROZEN_WITH_GRADIENT] * 2


def test_sums_are_in_place_a_tied_parameter_once_and_equal_on_all_ranks(ran):
    size, ranks = ran
    for _, _, after, kept, *_ in ranks:
        assert kept
        assert after[0].tolist() == [size * (size + 1) / 2] * 2
        assert after[1].tolist() == [1, 2, 3]
        assert after[2].tolist() == [[0, 2, 4], [1, 3, 5]]
        assert after[5].tolist() == [0.5] * 5


def test_one_message_says_which_gradients_exist_and_each_that_does_is_sent_once(ran):
    size, ranks = ran
    tensors = [5, 8, 12, 24, 10]  # bytes: a flag for each that is not frozen, four gradients
    for *_, sizes, _ in ranks:
        expected = [-(-2 * (size - 1) * n // size) for n in tensors]
        assert sizes == (expected if size > 1 else [])


def test_sparse_gradients_are_refused_with_their_number_and_the_way_out():
    tables = [nn.Embedding(4, 2, sparse=sparse) for sparse in (True, False, True)]
    for table in tables:
        table(torch.tensor([1, 2])).sum().backward()
    check_dense([tables[1].weight])
    with pytest.raises(ValueError, match=r"2 parameters have sparse gradients.*sparse=False"):
        check_dense([table.weight for table in tables])
    with pytest.raises(ValueError, match="1 parameters have sparse"):
        fill_gradients(None, [tables[0].weight])
