"""The whole GPT, cut over 1 to 4 ranks, equals one process; its norm, its counts, its refusals."""

import functools
import sys
from collections import Counter

import cloudpickle
import pytest
import torch

from pedagogy.costs import memory
from pedagogy.ranks import launch
from pedagogy.tensor_parallel import ParallelBlock, ParallelGPT, clip_grad_norm
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
PROBLEMS = [TIED, UNTIED, FLOAT32]


def train_all(group):
    """The History of every problem with every block; clipped steps; accumulated gradients."""
    torch.set_num_threads(1)
    histories = {
        (problem.name, block.__name__): train(group, problem, 3, block)
        for problem in PROBLEMS
        for block in BLOCKS
    }
    return histories, clipped(group), accumulated(group)


@functools.cache
def run_of(world_size):
    """One launch for each number of ranks."""
    return launch(train_all, world_size)


@functools.cache
def truth(name):
    """What one process does with the problem of this name."""
    return one_process(next(problem for problem in PROBLEMS if problem.name == name))


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.__name__)
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_a_cut_gpt_trains_as_one_process_does(problem, block, world_size):
    histories = [rank[0][problem.name, block.__name__] for rank in run_of(world_size)]
    full = put_together(histories, VOCABULARY)
    assert differences(truth(problem.name), full, problem.dtype) == []


def test_a_sequence_that_no_rank_divides_is_no_matter_where_it_is_not_cut():
    full = put_together(list(launch(train, 2, TIED_GPT, 3)), 256)  # 7 positions
    assert differences(one_process(TIED_GPT), full, TIED_GPT.dtype) == []


MAX_NORM = 0.3


def clipped(group):
    """Three clipped steps of every block: the norms, and the weights put together by `to_gpt`."""
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


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
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
    for _, blocks, _ in run_of(world_size):
        assert len(blocks) == 3
        for norms, whole in blocks:
            torch.testing.assert_close(norms, expected, rtol=1e-10, atol=0)
            same(dict(whole.named_parameters()), dict(model.named_parameters()))
            inputs = batch(9)[0]
            torch.testing.assert_close(whole(inputs), model(inputs), rtol=1e-10, atol=1e-12)


def accumulated(group):
    """Two backward passes, then one `finish_backward`; the gradients of every block."""
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
    for block in range(3):
        shards = [accumulated_gradients[block] for _, _, accumulated_gradients in run_of(2)]
        for rank in range(2):
            same(full_tensors(shards, rank, VOCABULARY), expected)


def same(actual, expected):
    """Equal to rounding, by name."""
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(actual[name], tensor, rtol=1e-10, atol=1e-12)


# --- what is sent ---------------------------------------------------------------------------------

SIZES = {"vocabulary": 256, "layers": 3, "hidden": 16, "heads": 4, "sequence": 8}
B = 2


def one_step(group, block):
    """The events of a forward, of a backward, and of what follows it."""
    model = ParallelGPT(group, GPT(**SIZES), block)
    inputs, targets = text_batch(B, SIZES["sequence"])
    marks = [len(group.events)]
    loss = model.loss(inputs, targets)
    marks.append(len(group.events))
    loss.backward()
    marks.append(len(group.events))
    model.finish_backward()
    events = group.events
    return [events[a:b] for a, b in zip(marks, [*marks[1:], len(events)], strict=True)]


def counted(events):
    """How many of each kind, and the bytes that this rank sent."""
    return dict(Counter(e.kind for e in events)), sum(e.nbytes for e in events)


@pytest.mark.parametrize("n", [2, 4])
def test_a_step_of_megatrons_gpt_is_two_all_reduces_a_layer_each_way_and_five_more(n):
    layers, tokens = SIZES["layers"], B * SIZES["sequence"]
    one = 2 * (n - 1) * 4 * tokens * SIZES["hidden"] // n  # of (batch, sequence, hidden), fp32
    three = 3 * 2 * (n - 1) * 4 * tokens // n  # the loss: maximum, sum, the label's logit
    for forward, backward, after in launch(one_step, n, ParallelBlock):
        assert counted(forward) == (
            {"all_reduce": 2 * layers + 1 + 3},
            (2 * layers + 1) * one + three,
        )
        assert counted(backward) == ({"all_reduce": 2 * layers + 1}, (2 * layers + 1) * one)
        assert counted(after) == ({}, 0)


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize(("block", "again"), [(BLOCKS[1], 0), (BLOCKS[2], 1)])
def test_sequence_parallelism_sends_as_much_in_halves_and_its_small_gradients(block, again, n):
    layers, hidden, tokens = SIZES["layers"], SIZES["hidden"], B * SIZES["sequence"]
    half = (n - 1) * 4 * tokens * hidden // n  # an all_gather or a reduce_scatter
    three = 3 * 2 * (n - 1) * 4 * tokens // n
    replicated = [hidden] * (6 * layers + 2) + [SIZES["sequence"] * hidden]
    pairs = 2 * layers + 1  # the embedding's scatter and the logits' gather are one pair
    for forward, backward, after in launch(one_step, n, block):
        assert counted(forward) == (
            {"reduce_scatter": pairs, "all_gather": pairs, "all_reduce": 3},
            2 * pairs * half + three,
        )
        assert counted(backward) == (
            {"reduce_scatter": pairs, "all_gather": pairs + again * 2 * layers},
            (2 * pairs + again * 2 * layers) * half,
        )
        assert counted(after) == (
            {"all_reduce": len(replicated)},
            sum(2 * (n - 1) * 4 * count // n for count in replicated),
        )


# --- parameters -----------------------------------------------------------------------------------


def count_parameters(group, vocabulary):
    """This rank's parameters, by whether they are cut."""
    model = ParallelGPT(group, GPT(vocabulary, 3, 16, 4, 8))
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("vocabulary", [256, 257])
def test_a_rank_holds_the_parameters_that_the_formula_says(vocabulary, world_size):
    held = memory.gpt_parameters_per_rank(3, 16, vocabulary, 8, tensor_parallel=world_size)
    assert set(launch(count_parameters, world_size, vocabulary)) == {sum(held.values())}


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
