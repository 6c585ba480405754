"""Chapter 03: what a layer sends, with and without sequence parallelism."""

from __future__ import annotations

from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register


def sequence_parallel_bytes(tokens: int, hidden: int, ranks: int) -> dict[str, int]:
    """Bytes that each rank sends for one layer, forward and backward, in 16 bit, by ring.

    "tensor": f and g. "gathered": sequence parallelism that keeps its gathered inputs. "shard": the
    kind that keeps the shard alone and gathers it once more in backward.
    """
    whole = 2 * tokens * hidden
    half = (ranks - 1) * whole // ranks  # an all_gather, or a reduce_scatter
    all_reduces = 2 + 2
    gathers, scatters = 2 + 2, 2 + 2
    return {
        "tensor": all_reduces * 2 * half,
        "gathered": (gathers + scatters) * half,
        "shard": (gathers + 2 + scatters) * half,
    }


# --- mistakes -------------------------------------------------------------------------------------


def _sent(tokens, hidden, ranks, all_reduces=4, gathers=4, scatters=4, again=2, of_all=1):
    """Bytes of so many collectives; each all_gather counts `of_all` times."""
    half = (ranks - 1) * 2 * tokens * hidden // ranks
    return {
        "tensor": all_reduces * 2 * half,
        "gathered": (gathers * of_all + scatters) * half,
        "shard": ((gathers + again) * of_all + scatters) * half,
    }


def _forward_alone(tokens, hidden, ranks):
    return _sent(tokens, hidden, ranks, 2, 2, 2)


def _one_half_of_the_layer(tokens, hidden, ranks):
    return _sent(tokens, hidden, ranks, 2, 2, 2, 1)


def _an_all_reduce_counted_once(tokens, hidden, ranks):
    found = _sent(tokens, hidden, ranks)
    return {**found, "tensor": found["tensor"] // 2}


def _shard_taken_for_the_whole(tokens, hidden, ranks):
    return _sent(tokens, hidden, ranks, of_all=ranks)


def _not_gathered_again(tokens, hidden, ranks):
    return _sent(tokens, hidden, ranks, again=0)


def _gathers_once_more_in_one_half(tokens, hidden, ranks):
    return _sent(tokens, hidden, ranks, again=1)


def _everything_again(tokens, hidden, ranks):
    return _sent(tokens, hidden, ranks, again=4)


def _times(factor, found):
    return {kind: factor * sent for kind, sent in found.items()}


def _in_32_bit(tokens, hidden, ranks):
    return _times(2, _sent(tokens, hidden, ranks))


def _whole_tensor_in_each_step(tokens, hidden, ranks):
    return _times(ranks, _sent(tokens, hidden, ranks))


def _whole_tensors(tokens, hidden, ranks):
    whole = 2 * tokens * hidden
    return {"tensor": 8 * whole, "gathered": 8 * whole, "shard": 10 * whole}


BYTES = Exercise(
    name="sequence_parallel_bytes",
    title="The same bytes, cut differently",
    chapter="03",
    reference=sequence_parallel_bytes,
    cases=[(2048, 12288, 8), (512, 64, 4), (6, 4, 2)],
    mistakes=[
        (
            _forward_alone,
            "This is forward: backward exchanges as much again (f and g change roles).",
        ),
        (
            _one_half_of_the_layer,
            "This is half of it: attention and feed-forward exchange alike, and in 16 bit a number "
            "has 2 bytes.",
        ),
        (
            _an_all_reduce_counted_once,
            "An all_reduce by a ring is a reduce_scatter and then an all_gather: it sends twice "
            "(N-1)/N of the tensor.",
        ),
        (
            _shard_taken_for_the_whole,
            "In an all_gather each rank passes on N-1 shards, of tokens * hidden / N numbers each: "
            "(N-1)/N of the tensor, not N-1 tensors.",
        ),
        (
            _not_gathered_again,
            "Who keeps the shard alone gathers both halves' inputs again in backward, for the "
            "gradients of their weights: 6 all_gathers and 4 reduce_scatters.",
        ),
        (
            _gathers_once_more_in_one_half,
            "Attention and feed-forward both gather their input again: 2 more, not 1.",
        ),
        (
            _everything_again,
            'Of "shard": the inputs of both halves are gathered again, and no reduce_scatter is '
            "repeated: 6 all_gathers and 4 reduce_scatters, 10 and not 12.",
        ),
        (_in_32_bit, "A number in 16 bit has 2 bytes, not 4."),
        (
            _whole_tensor_in_each_step,
            "A ring takes N-1 steps, and in each of them a rank sends 1/N of the tensor, not all.",
        ),
        (
            _whole_tensors,
            "A ring sends (N-1)/N of the tensor in an all_gather or a reduce_scatter: a rank has "
            "1/N of it already.",
        ),
    ],
    hints=[
        "Each half of a layer (attention, feed-forward) has one f and one g: forward one "
        "all_reduce, backward one.",
        "A ring's all_gather sends (N-1)/N of the tensor from each rank, so does its "
        "reduce_scatter, and an all_reduce is one of each.",
    ],
)

register(BYTES)
