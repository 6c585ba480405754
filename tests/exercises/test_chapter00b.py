"""What the exercises of chapter 00b do not let pass."""

from __future__ import annotations

import torch.distributed as dist

from pedagogy.exercises import engine
from pedagogy.exercises.chapter00b_messages import RING_PASS, TREE_BROADCAST


def test_a_broadcast_that_the_trace_did_not_see_is_no_tree_of_messages():
    def tree_broadcast(group, x, source=0):
        result = x.clone()
        dist.broadcast(result, source)  # torch's own call: nothing is logged
        return result

    text = engine.explain(TREE_BROADCAST, tree_broadcast)
    assert "the trace holds 0 messages with the tensor, and 5 ranks need it" in text


def test_a_collective_of_the_group_is_not_a_message():
    text = engine.explain(TREE_BROADCAST, lambda group, x, source=0: group.broadcast(x, source))
    assert "the collective broadcast; write it with messages alone" in text
    assert "This is the collective itself" in text


def test_a_ring_pass_by_another_collective_is_refused_as_well():
    def ring_pass(group, x):
        shapes = [group.broadcast(x.new_tensor([x.shape[-1]]), r) for r in range(group.size)]
        longest = int(max(shapes))
        padded = x.new_zeros(longest)
        padded[: x.numel()] = x.flatten()
        left = (group.rank - 1) % group.size
        found = group.all_gather(padded)[left][: int(shapes[left])]
        return found.reshape(*x.shape[:-1], -1)

    assert "the collective all_gather, broadcast; write it with" in engine.explain(
        RING_PASS, ring_pass
    )
