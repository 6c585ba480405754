"""Every all-reduce built from send and recv, held against the sum that one process makes."""

import itertools
import sys

import cloudpickle
import pytest
import torch

from pedagogy import collectives
from pedagogy.collectives import ring_steps, tree_steps
from pedagogy.collectives.chunks import chunk_sizes
from pedagogy.ranks import launch
from tests.collectives import mutants

cloudpickle.register_pickle_by_value(sys.modules[__name__])

ALGORITHMS = [
    collectives.naive_all_reduce,
    collectives.ring_all_reduce,
    collectives.tree_all_reduce,
    collectives.halving_doubling_all_reduce,
]
SHAPES = [(0,), (), (1,), (2,), (3,), (5,), (17,), (4, 6), (3, 0, 2), (2, 3, 5)]
DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int8, torch.complex64,
]  # fmt: skip


def make(rank, shape, dtype):
    """Small whole numbers, different on each rank, exact in every dtype; and a name for errors."""
    numel = torch.Size(shape).numel()
    return (torch.arange(numel).reshape(shape) % 7 + 3 * rank).to(dtype)


def strided(rank):
    """Tensors whose storage is not what they look like: (name, tensor)."""
    base = torch.arange(24.0).reshape(4, 6) + 100 * rank
    return {
        "transposed": base.t(),
        "column": base[:, 2],
        "every other": base[::2, 1::2],
        "expanded": base[0, :1].expand(3, 5),
        "flipped": base.flip(0)[1:],
        "conjugate, lazily": torch.complex(base, base + 1).conj(),
        "negative, lazily": torch.complex(base, base + 1).conj().imag,
    }


def wrong_sums(group, algorithm):
    """What an algorithm gets wrong: a list of descriptions, empty where it is right."""
    wrong = []
    everyone = range(group.size)
    for shape, dtype in itertools.product(SHAPES, DTYPES):
        x = make(group.rank, shape, dtype)
        before = x.clone()
        result = algorithm(group, x)
        expected = sum(make(rank, shape, dtype) for rank in everyone)
        if not (
            result.shape == x.shape and result.dtype == dtype and torch.equal(result, expected)
        ):
            wrong.append(f"{shape} {dtype}: {result} is not {expected}")
        if not torch.equal(x, before):
            wrong.append(f"{shape} {dtype}: the input was changed")
        if x.numel() and result.data_ptr() == x.data_ptr():
            wrong.append(f"{shape} {dtype}: the result is the input")
    for name, x in strided(group.rank).items():
        expected = sum(strided(rank)[name] for rank in everyone)
        if not torch.equal(algorithm(group, x), expected):
            wrong.append(f"{name} input")
    return wrong


def check_all(group, algorithms):
    return {algorithm.__name__: wrong_sums(group, algorithm) for algorithm in algorithms}


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5])
def test_all_reduces_equal_the_sum_of_one_process(world_size):
    run = launch(check_all, world_size, ALGORITHMS)
    assert list(run) == [{algorithm.__name__: [] for algorithm in ALGORITHMS}] * world_size


def reduce_one(group, algorithm, numel):
    return algorithm(group, torch.ones(numel))


def bytes_by_rank(algorithm, world_size, numel):
    trace = launch(reduce_one, world_size, algorithm, numel).trace
    return [trace.bytes_sent(rank=rank) for rank in range(world_size)]


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_a_ring_sends_two_times_n_minus_one_over_n(world_size):
    numel = 1200
    expected = 2 * (world_size - 1) * numel * 4 // world_size
    assert bytes_by_rank(collectives.ring_all_reduce, world_size, numel) == [expected] * world_size


def test_a_ring_of_uneven_chunks_sends_all_chunks_twice_but_two():
    # 10 elements on 4 ranks: chunks of 3, 3, 2, 2. Rank r never sends chunk r + 1 to be added, and
    # never passes on the finished chunk r + 2.
    sizes = [3, 3, 2, 2]
    expected = [4 * (20 - sizes[(r + 1) % 4] - sizes[(r + 2) % 4]) for r in range(4)]
    assert bytes_by_rank(collectives.ring_all_reduce, 4, 10) == expected == [60, 64, 60, 56]


def test_the_root_of_the_naive_all_reduce_sends_to_everyone():
    assert bytes_by_rank(collectives.naive_all_reduce, 4, 100) == [1200, 400, 400, 400]


def test_a_tree_sends_as_much_in_total_as_a_ring_but_unevenly():
    sent = bytes_by_rank(collectives.tree_all_reduce, 4, 100)
    assert sent == [800, 400, 800, 400]
    assert sum(sent) == sum(bytes_by_rank(collectives.ring_all_reduce, 4, 100))


@pytest.mark.parametrize(
    ("world_size", "expected"),
    [
        (2, [400, 400]),
        (4, [600, 600, 600, 600]),
        (3, [400 + 400, 400, 400]),  # rank 2 folds into rank 0, which sends the sum back
        (5, [600 + 400, 600, 600, 600, 400]),
    ],
)
def test_halving_doubling_sends_what_a_ring_sends_and_folding_costs_one_tensor(
    world_size, expected
):
    assert bytes_by_rank(collectives.halving_doubling_all_reduce, world_size, 100) == expected


def test_the_steps_of_a_ring_of_three_are_the_grid_in_the_docstring():
    chunks = [[transfer.chunk for transfer in step] for step in ring_steps(3)]
    assert chunks == [[0, 1, 2], [2, 0, 1], [1, 2, 0], [0, 1, 2]]
    phases = [step[0].phase for step in ring_steps(3)]
    assert phases == ["reduce_scatter", "reduce_scatter", "all_gather", "all_gather"]


@pytest.mark.parametrize("num_ranks", range(1, 9))
def test_the_steps_of_a_ring_deliver_every_part_to_every_rank(num_ranks):
    held = [[{rank} for _ in range(num_ranks)] for rank in range(num_ranks)]  # whose parts are in
    for step in ring_steps(num_ranks):
        arriving = [held[t.sender][t.chunk].copy() for t in step]
        for transfer, parts in zip(step, arriving, strict=True):
            mine = held[transfer.receiver][transfer.chunk]
            if transfer.phase == "reduce_scatter":
                assert not mine & parts, "a part would be added twice"
                parts = mine | parts
            held[transfer.receiver][transfer.chunk] = parts
    assert held == [[set(range(num_ranks))] * num_ranks] * num_ranks
    assert len(ring_steps(num_ranks)) == 2 * (num_ranks - 1)


def test_a_tree_of_five_reduces_in_three_steps():
    assert tree_steps(5) == [[(1, 0), (3, 2)], [(2, 0)], [(4, 0)]]
    assert tree_steps(1) == []


@pytest.mark.parametrize("steps", [ring_steps, tree_steps])
def test_no_ranks_are_refused(steps):
    with pytest.raises(ValueError, match="num_ranks is 0"):
        steps(0)


def test_chunks_are_as_equal_as_possible():
    assert chunk_sizes(10, 4) == [3, 3, 2, 2]
    assert chunk_sizes(2, 4) == [1, 1, 0, 0]
    assert chunk_sizes(0, 3) == [0, 0, 0]


def refuse_bool(group):
    messages = []
    for algorithm in ALGORITHMS:
        with pytest.raises(ValueError, match=r"torch\.bool") as caught:
            algorithm(group, torch.ones(3, dtype=torch.bool))
        messages.append(str(caught.value))
    return messages, len(group.events)


def test_bool_is_refused_before_anything_is_sent():
    messages, num_events = launch(refuse_bool, 1)[0]
    assert len(messages) == len(ALGORITHMS)
    assert num_events == 0


def test_the_comparison_notices_every_mutant():
    run = launch(check_all, 3, mutants.MUTANTS)
    unnoticed = [name for name in run[1] if not any(result[name] for result in run)]
    assert unnoticed == []


def check_strided(group):
    x = torch.arange(24.0).reshape(4, 6) + 100 * group.rank
    return mutants.ring_of_the_raw_storage(group, x.t()), collectives.ring_all_reduce(group, x.t())


def test_ignoring_strides_gives_other_numbers():
    raw, right = launch(check_strided, 2)[0]
    assert raw.sum() == right.sum()
    assert not torch.equal(raw, right)


def reduce_into(group):
    x = torch.arange(10.0).view(2, 5) + group.rank
    out = torch.empty(2, 5)
    result = collectives.ring_all_reduce(group, x, out=out)
    before = len(group.events)
    messages = []
    for wrong in (torch.empty(5, 2), torch.empty(5, 2).t(), torch.empty(2, 5).half(), x):
        with pytest.raises(ValueError, match="out") as caught:
            collectives.ring_all_reduce(group, x, out=wrong)
        messages.append(str(caught.value))
    return out, result.data_ptr() == out.data_ptr(), messages, len(group.events) - before


def test_a_ring_can_fill_a_tensor_that_exists_and_refuses_one_that_does_not_fit():
    for out, same, messages, num_events in launch(reduce_into, 3):
        assert torch.equal(out, 3 * torch.arange(10.0).view(2, 5) + 3)
        assert same
        assert num_events == 0
        assert "out is (5, 2)" in messages[0]
        assert "(10 elements)" in messages[3]
