"""The whole GPT, cut over 1 to 4 ranks, equals one process; its norm, its counts, its refusals."""

import functools
import sys

import cloudpickle
import pytest
import torch

from pedagogy.ranks import launch
from pedagogy.tensor_parallel import ParallelGPT, clip_grad_norm
from pedagogy.workloads import GPT, text_batch
from tests.equality import TIED_GPT, Problem, differences, momentum, one_process
from tests.tensor_parallel.cutting import (
    BLOCKS,
    TIED,
    UNTIED,
    VOCABULARY,
    batch,
    full_tensors,
    put_together,
    train,
)

cloudpickle.register_pickle_by_value(sys.modules[__name__])

FLOAT32 = Problem("float32", TIED.make_model, momentum, batch, TIED.loss, torch.float32)
PROBLEMS = [TIED, UNTIED]


def train_all(group, problems):
    """The History of every problem with every block."""
    torch.set_num_threads(1)
    return {
        (problem.name, block.__name__): train(group, problem, 3, block)
        for problem in problems
        for block in BLOCKS
    }


@functools.cache
def run_of(world_size):
    """One launch for each number of ranks."""
    return launch(train_all, world_size, PROBLEMS)


@functools.cache
def truth(name):
    """What one process does with the problem of this name."""
    return one_process(next(problem for problem in PROBLEMS if problem.name == name))


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.__name__)
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_a_cut_gpt_trains_as_one_process_does(problem, block, world_size):
    histories = [rank[problem.name, block.__name__] for rank in run_of(world_size)]
    full = put_together(histories, VOCABULARY)
    assert differences(truth(problem.name), full, problem.dtype) == []


def test_float32_is_equal_to_its_precision():
    expected, run = one_process(FLOAT32), launch(train_all, 2, [FLOAT32])
    for block in BLOCKS:
        full = put_together([rank["float32", block.__name__] for rank in run], VOCABULARY)
        assert differences(expected, full, FLOAT32.dtype) == []


def test_a_sequence_that_no_rank_divides_is_no_matter_where_it_is_not_cut():
    full = put_together(list(launch(train, 2, TIED_GPT, 3)), 256)  # 7 positions
    assert differences(one_process(TIED_GPT), full, TIED_GPT.dtype) == []


MAX_NORM = 0.3


def clipped(group):
    """Three clipped steps of every block: the norms, and the weights put together by `to_gpt`."""
    torch.set_num_threads(1)
    found = []
    for block in BLOCKS:
        model = ParallelGPT(group, TIED.model(group.rank), block)
        optimizer = TIED.make_optimizer(model.parameters())
        norms = []
        for step in range(3):
            model.loss(*batch(step)).backward()
            model.finish_backward()
            norms.append(clip_grad_norm(group, model, MAX_NORM))
            optimizer.step()
            optimizer.zero_grad()
        found.append((norms, model.to_gpt()))
    return found


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_the_clipped_norm_is_pytorchs_and_to_gpt_gives_its_weights_on_every_rank(world_size):
    model = TIED.model()
    optimizer = TIED.make_optimizer(model.parameters())
    expected = []
    for step in range(3):
        TIED.loss(model(batch(step)[0]), batch(step)[1]).backward()
        expected.append(torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM).detach())
        optimizer.step()
        optimizer.zero_grad()
    assert min(expected) > MAX_NORM  # all three steps are clipped
    for blocks in launch(clipped, world_size):
        assert len(blocks) == 3
        for norms, whole in blocks:
            torch.testing.assert_close(norms, expected, rtol=1e-10, atol=0)
            same(dict(whole.named_parameters()), dict(model.named_parameters()))
            inputs = batch(9)[0]
            torch.testing.assert_close(whole(inputs), model(inputs), rtol=1e-10, atol=1e-12)


def accumulated(group):
    """Two backward passes, then one `finish_backward`; the gradients of every block."""
    torch.set_num_threads(1)
    found = []
    for block in BLOCKS:
        model = ParallelGPT(group, UNTIED.model(group.rank), block)
        for step in range(2):
            model.loss(*batch(step)).backward()
        model.finish_backward()
        found.append({name: p.grad for name, p in model.named_parameters()})
    return found


def test_gradients_accumulate_and_are_finished_once():
    model = UNTIED.model()
    for step in range(2):
        UNTIED.loss(model(batch(step)[0]), batch(step)[1]).backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    for shards in zip(*launch(accumulated, 2), strict=True):  # of each block, by rank
        for rank in range(2):
            same(full_tensors(shards, rank, VOCABULARY), expected)


def same(actual, expected):
    """Equal to rounding, by name."""
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(actual[name], tensor, rtol=1e-10, atol=1e-12)


# --- refusals -------------------------------------------------------------------------------------


def refused(group, make_call):
    """What a call says, and how much was sent before."""
    call = make_call(group)
    before = len(group.events)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the caller reads the message)
        call()
    return str(caught.value), len(group.events) - before


def heads_do_not_divide(block):
    return lambda group: lambda: ParallelGPT(group, GPT(hidden=64, heads=8), block)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.__name__)
def test_heads_that_the_ranks_do_not_divide_are_refused_before_anything_is_sent(block):
    for message, sent in launch(refused, 3, heads_do_not_divide(block)):
        assert message == "heads is 8, which 3 ranks do not divide; 6 or 9 would do"
        assert sent == 0


def short_sequence(group):
    model = ParallelGPT(group, GPT(hidden=16, heads=4, sequence=8), BLOCKS[1])
    return lambda: model(torch.zeros(2, 5, dtype=torch.int64))


def test_a_sequence_that_the_ranks_do_not_divide_is_refused_before_anything_is_sent():
    for message, sent in launch(refused, 2, short_sequence):
        assert message == "sequence is 5, which 2 ranks do not divide; 4 or 6 would do"
        assert sent == 0


def long_sequence(group):
    model = ParallelGPT(group, GPT(hidden=16, heads=4, sequence=8))
    return lambda: model(torch.zeros(2, 9, dtype=torch.int64))


def test_more_tokens_than_positions_are_refused():
    for message, sent in launch(refused, 2, long_sequence):
        assert message == "inputs of 9 tokens: this GPT has 8 positions"
        assert sent == 0


def shorter_than_all_positions(group, block):
    torch.manual_seed(0)
    whole = GPT(hidden=16, heads=4, sequence=8).double()
    model = ParallelGPT(group, whole, block)
    inputs, targets = text_batch(2, 4)
    mine, theirs = model.loss(inputs, targets), whole.loss(inputs, targets)
    mine.backward()
    model.finish_backward()
    theirs.backward()
    return mine.detach() - theirs.detach(), model.position.grad - whole.position.weight.grad


@pytest.mark.parametrize("block", BLOCKS[:2], ids=lambda block: block.__name__)
def test_inputs_shorter_than_the_positions_use_the_first_ones(block):
    for loss, gradient in launch(shorter_than_all_positions, 2, block):
        assert abs(loss) < 1e-12
        assert gradient.abs().max() < 1e-12
