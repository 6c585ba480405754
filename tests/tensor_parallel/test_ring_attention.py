"""Ring attention equals PyTorch's attention over the whole sequence; its bytes and its memory."""

import functools
import itertools
import sys

import cloudpickle
import pytest
import torch
from torch.nn import functional

from pedagogy.measure import memory_meter
from pedagogy.ranks import launch
from pedagogy.tensor_parallel import ring_attention, split_sequence
from tests.tensor_parallel.cutting import random

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SHAPE = (2, 3, 12, 5)  # batch, heads, sequence, head_dim
GRADIENTS = {
    "dense": lambda: random(9, *SHAPE),
    "transposed": lambda: random(9, *SHAPE[::-1]).permute(3, 2, 1, 0),
    "expanded": lambda: torch.ones((), dtype=torch.float64).expand(SHAPE),
}
CASES = list(itertools.product((True, False), GRADIENTS, (1.0, 300.0)))  # causal, gradient, scale


def inputs_of(scale):
    """Queries, keys, values as an attention has them: heads in front of the sequence, by a view."""
    batch, heads, sequence, head_dim = SHAPE
    return [
        scale * random(seed, batch, sequence, heads, head_dim).transpose(1, 2) for seed in range(3)
    ]


def attend_all(group, attention):
    """Output and gradients of this rank's sub-sequence, of every case."""
    torch.set_num_threads(1)
    found = []
    for causal, gradient, scale in CASES:
        mine = [t.chunk(group.size, 2)[group.rank].requires_grad_() for t in inputs_of(scale)]
        output = attention(group, *mine, causal)
        output.backward(GRADIENTS[gradient]().chunk(group.size, 2)[group.rank])
        found.append((output.detach(), *(t.grad for t in mine)))
    return found


@functools.cache
def run_of(world_size):
    """One launch for each number of ranks."""
    return launch(attend_all, world_size, ring_attention)


def whole_attention(causal, gradient, scale):
    """The same by PyTorch, in one process."""
    inputs = [t.detach().requires_grad_() for t in inputs_of(scale)]
    output = functional.scaled_dot_product_attention(*inputs, is_causal=causal)
    output.backward(GRADIENTS[gradient]())
    return output.detach(), *(t.grad for t in inputs)


def wrong_tensors(case, ranks):
    """Which of output and gradients of q, k, v differ from PyTorch's."""
    found = []
    for index, (name, expected) in enumerate(zip("oqkv", whole_attention(*case), strict=True)):
        actual = torch.cat([rank[index] for rank in ranks], 2)
        if not torch.allclose(actual, expected, rtol=1e-10, atol=1e-10 * case[2]):
            found.append(name)
    return found


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_output_and_gradients_are_those_of_whole_attention(case, world_size):
    assert wrong_tensors(case, [rank[CASES.index(case)] for rank in run_of(world_size)]) == []


def trained(group, causal):
    """Three steps on queries, keys and values that are themselves trained."""
    mine = [split_sequence(group, t).requires_grad_() for t in inputs_of(1.0)]
    optimizer = torch.optim.SGD(mine, lr=0.5, momentum=0.9)
    for step in range(3):
        weight = split_sequence(group, random(20 + step, *SHAPE))
        (ring_attention(group, *mine, causal) * weight).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [t.detach() for t in mine]


@pytest.mark.parametrize("causal", [True, False])
def test_after_three_steps_what_was_trained_is_the_same(causal):
    whole = [t.contiguous().requires_grad_() for t in inputs_of(1.0)]
    optimizer = torch.optim.SGD(whole, lr=0.5, momentum=0.9)
    for step in range(3):
        output = functional.scaled_dot_product_attention(*whole, is_causal=causal)
        (output * random(20 + step, *SHAPE)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    ranks = list(launch(trained, 3, causal))
    for index, expected in enumerate(whole):
        actual = torch.cat([rank[index] for rank in ranks], 2)
        torch.testing.assert_close(actual, expected.detach(), rtol=1e-10, atol=1e-12)


# --- what it costs --------------------------------------------------------------------------------


def events_of(group, causal):
    """The events of a forward and of a backward."""
    mine = [split_sequence(group, t).requires_grad_() for t in inputs_of(1.0)]
    output = ring_attention(group, *mine, causal)
    forward = len(group.events)
    output.sum().backward()
    return group.events[:forward], group.events[forward:]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_keys_and_values_go_round_once_each_way_and_gradients_come_home(n, causal):
    pair = 2 * 8 * 2 * 3 * 12 * 5 // n  # keys and values of one sub-sequence, in float64
    for rank, (forward, backward) in enumerate(launch(events_of, n, causal)):
        sends = [e for e in forward if e.kind == "send"]
        assert [e.nbytes for e in sends] == [pair] * (n - 1)
        assert sum(e.nbytes for e in backward) == (n - 1) * pair + (n * pair if n > 1 else 0)
        others = {e.kind for e in (*forward, *backward)} - {"send", "recv", "F", "B"}
        assert not others
        blocks = [(rank - step) % n for step in range(n)]
        computed = [source for source in blocks if not causal or source <= rank]
        assert [e.name for e in forward if e.kind == "F"] == [f"F{s}" for s in computed]
        assert [e.name for e in backward if e.kind == "B"] == [f"B{s}" for s in computed]


def test_keys_and_values_leave_before_the_block_is_computed():
    for forward, backward in launch(events_of, 4, False):
        for events, kind in ((forward, "F"), (backward, "B")):
            computed = [e for e in events if e.kind == kind]
            sends = sorted((e for e in events if e.kind == "send"), key=lambda e: e.start)
            for block in computed[:-1]:
                assert any(e.start <= block.start and e.end >= block.end for e in sends)


def peaks(group, sequence):
    """The most that is live in a forward and in a backward, beyond queries, keys and values."""
    mine = [torch.zeros(1, 2, sequence // group.size, 1, requires_grad=True) for _ in range(3)]
    with memory_meter() as forward:
        output = ring_attention(group, *mine, False)
    with memory_meter() as backward:
        output.sum().backward()
    return forward.peak, backward.peak


@pytest.mark.parametrize("n", [1, 2, 4])
def test_the_scores_on_a_rank_fall_with_the_square_of_the_ranks(n):
    sequence = 256
    scores = 4 * 2 * (sequence // n) ** 2  # fp32, two heads
    vector = 4 * 2 * sequence // n  # one number a query
    for forward, backward in launch(peaks, n, sequence):
        assert scores < forward < scores + 20 * vector
        assert 2 * scores < backward < 2 * scores + 20 * vector


# --- refusals -------------------------------------------------------------------------------------


def refused(group, how):
    """What is said on this rank."""
    shape = [2, 3, 4, 5]
    q = k = v = torch.zeros(shape)
    causal = True
    if how == "other lengths":
        q = k = v = torch.zeros(2, 3, 4 + group.rank, 5)
    if how == "the largest first":
        q = k = v = torch.zeros(2, 3, 6 - group.rank, 5)
    if how == "other precision":
        q = k = v = torch.zeros(shape, dtype=(torch.float32, torch.float64)[group.rank % 2])
    if how == "one causal":
        causal = group.rank == 0
    if how == "keys and queries":
        k = torch.zeros(2, 3, 5, 5)
    if how == "three dimensions":
        q = k = v = torch.zeros(3, 4, 5)
    with pytest.raises(ValueError, match=r"do not agree|shapes") as caught:
        ring_attention(group, q, k, v, causal)
    return str(caught.value)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("other lengths", [4, 5, 6]),
        ("the largest first", [6, 5, 4]),
        ("other precision", ["float32", "float64", "float32"]),
        ("one causal", ["causal=True", "causal=False", "causal=False"]),
        ("keys and queries", "(2, 3, 4, 5), (2, 3, 5, 5), (2, 3, 4, 5)"),
        ("three dimensions", "(3, 4, 5), (3, 4, 5), (3, 4, 5)"),
    ],
)
def test_what_does_not_fit_is_refused_on_every_rank_and_nobody_waits(how, says):
    for message in launch(refused, 3, how, timeout=30):
        if isinstance(says, str):
            assert says in message
        else:
            rows = [line for line in message.splitlines() if line.startswith("  rank")]
            assert all(str(said) in row for said, row in zip(says, rows, strict=True))


def split_badly(group):
    with pytest.raises(ValueError, match="ranks do not divide") as caught:
        split_sequence(group, torch.zeros(1, 1, 10, 2))
    return str(caught.value)


def test_a_sequence_that_the_ranks_do_not_divide_is_refused():
    assert set(launch(split_badly, 3)) == {
        "sequence is 10, which 3 ranks do not divide; 9 or 12 would do"
    }
