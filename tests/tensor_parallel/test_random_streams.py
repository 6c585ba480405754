"""Dropout under tensor parallelism: equal masks where ranks hold the same, others elsewhere."""

import sys

import cloudpickle
import torch

from pedagogy.ranks import grid, launch
from pedagogy.tensor_parallel import (
    ParallelGPT,
    RandomStreams,
    SequenceParallelBlock,
    StreamDropout,
)
from pedagogy.workloads import GPT

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def c28(group):
    """Masks of a replicated and of a cut tensor, where a rank stands, and a layer's own streams."""
    axes = grid(group, dp=2, tp=2)
    dp, tp = axes["dp"], axes["tp"]
    streams = RandomStreams(tp, seed=5, replica=dp.rank)
    ones = torch.ones(40, 40)
    masks = [StreamDropout(0.5, stream)(ones) for stream in (streams.shared, streams.own)]
    gpt = ParallelGPT(tp, GPT(hidden=16, heads=4, dropout=0.1), SequenceParallelBlock, streams)
    used = {id(m.generator) for m in gpt.modules() if isinstance(m, StreamDropout)}
    return dp.rank, *masks, used == {id(streams.own)}


def test_C28_replicated_masks_are_equal_in_a_pair_and_all_else_differs():
    run = list(launch(c28, 4))
    assert [rank[0] for rank in run] == [0, 0, 1, 1]
    shared, own = ([rank[index] for rank in run] for index in (1, 2))
    for a in range(4):
        assert 0.4 < (own[a] == 0).float().mean() < 0.6
        assert set(own[a].unique().tolist()) == {0.0, 2.0}
        for b in range(a):
            assert torch.equal(shared[a], shared[b]) == (run[a][0] == run[b][0])
            assert not torch.equal(own[a], own[b])
            # unrelated, not shifted: about half of the places agree
            assert 0.4 < (own[a] == own[b]).float().mean() < 0.6
        assert not any(torch.equal(own[a], other) for other in shared)


def test_C28_with_sequence_parallelism_every_dropout_draws_from_the_ranks_own_stream():
    assert all(rank[3] for rank in launch(c28, 4))


def c28_recompute(group, restored):
    """A block's gradients, plain and from a forward that is computed again before backward."""
    torch.manual_seed(0)
    found = []
    for recompute in (False, True):
        streams = RandomStreams(group, seed=3)
        model = ParallelGPT(
            group, GPT(layers=1, hidden=16, heads=4, sequence=8, dropout=0.3), streams=streams
        )
        x, y = torch.zeros(2, 2, 8, dtype=torch.int64).unbind()
        state = streams.state()
        loss = model.loss(x, y)
        if recompute:
            after = streams.state()
            if restored:
                streams.restore(state)
            loss = model.loss(x, y)  # dropped and computed again
            streams.restore(after)
        loss.backward()
        found.append([p.grad for p in model.parameters()] + [streams.own.get_state()])
        torch.manual_seed(0)
    return all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_C28_a_recomputed_forward_draws_the_same_masks_if_both_states_are_restored():
    assert list(launch(c28_recompute, 2, True)) == [True, True]
    assert list(launch(c28_recompute, 2, False)) == [False, False]


def test_masks_differ_by_seed_and_repeat_with_it():
    def masks(group):
        ones = torch.ones(100)
        return [StreamDropout(0.5, RandomStreams(group, s).shared)(ones) for s in (1, 1, 2)]

    for first, again, other in launch(masks, 2):
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
