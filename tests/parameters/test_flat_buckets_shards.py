"""Flatten, bucket and shard: nothing is lost, nothing is doubled, nothing moves."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from pedagogy.parameters import (
    FIRST_BUCKET_BYTES,
    bucket,
    flatten,
    shard,
    shard_numel,
    unflatten,
    unique_parameters,
    unshard,
)
from pedagogy.workloads import GPT

shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
dtypes = st.sampled_from([torch.float32, torch.float16, torch.float64])


def counted(shape, start=0, dtype=torch.float32):
    """A tensor of the given shape with values start, start + 1, ..."""
    numel = torch.Size(shape).numel()
    return torch.arange(start, start + numel, dtype=dtype).reshape(shape)


@settings(max_examples=100, deadline=None)
@given(st.lists(shapes, min_size=1, max_size=6))
def test_unflatten_undoes_flatten_with_views(some_shapes):
    tensors = [counted(shape, 100 * i) for i, shape in enumerate(some_shapes)]
    flat = flatten(tensors)
    pieces = unflatten(flat, tensors)
    assert all(torch.equal(a, b) for a, b in zip(pieces, tensors, strict=True))
    flat.add_(1)  # the pieces are the buffer
    assert all(torch.equal(a, b + 1) for a, b in zip(pieces, tensors, strict=True))
    before = [tensor.clone() for tensor in tensors]
    flat.zero_()  # the tensors are not
    assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))


def test_flatten_reads_strided_tensors_in_their_logical_order():
    x = counted((2, 3))
    assert flatten([x.t(), x[:, ::2]]).tolist() == [0, 3, 1, 4, 2, 5, 0, 2, 3, 5]


def test_flatten_refuses_nothing_and_mixtures():
    with pytest.raises(ValueError, match="no tensors"):
        flatten([])
    with pytest.raises(ValueError, match=r"torch.float16.*torch.float32"):
        flatten([torch.zeros(1), torch.zeros(1, dtype=torch.float16)])


def test_unflatten_refuses_a_buffer_of_another_size_with_both_numbers():
    with pytest.raises(ValueError, match=r"\(5,\).*6 values"):
        unflatten(torch.zeros(5), [torch.zeros(2, 3)])


def test_tied_parameters_are_one():
    model = GPT()
    with_names = [p for m in model.modules() for p in m._parameters.values() if p is not None]
    assert len(with_names) == len(unique_parameters(with_names)) + 1
    assert all(
        a is b for a, b in zip(unique_parameters(with_names), model.parameters(), strict=True)
    )


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), dtypes), max_size=12),
    st.integers(1, 300),
    st.integers(1, 300),
)
def test_buckets_are_those_that_ddp_would_make(sizes, limit, first):
    parameters = [torch.zeros(numel, dtype=dtype) for numel, dtype in sizes]
    buckets = bucket(parameters, limit, first)
    if not parameters:
        assert buckets == []
        return
    backwards = parameters[::-1]
    expected, _ = dist._compute_bucket_assignment_by_size(backwards, [first, limit])
    index = {id(p): i for i, p in enumerate(backwards)}
    assert [[index[id(p)] for p in members] for members in buckets] == expected


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), dtypes), max_size=12), st.integers(1, 300))
def test_every_parameter_is_whole_in_one_bucket_of_its_dtype(sizes, limit):
    parameters = [torch.zeros(numel, dtype=dtype) for numel, dtype in sizes]
    buckets = bucket(parameters, limit)
    assert sorted(id(p) for b in buckets for p in b) == sorted(id(p) for p in parameters)
    for members in buckets:
        assert len({p.dtype for p in members}) == 1
        flatten(members)
        assert sum(p.nbytes for p in members[:-1]) < limit  # only the last may pass the limit


def test_the_last_parameter_travels_first_and_ddps_first_bucket_is_smaller():
    quarter = [torch.zeros(2**16) for _ in range(10)]  # 256 KiB each
    sizes = [len(b) for b in bucket(quarter, 2 * 2**20, FIRST_BUCKET_BYTES)]
    assert sizes == [4, 6]
    assert bucket(quarter)[0][0] is quarter[-1]


def test_buckets_refuse_a_limit_of_nothing_and_a_parameter_that_comes_twice():
    p = torch.zeros(1)
    with pytest.raises(ValueError, match="0 bytes"):
        bucket([p], 0)
    with pytest.raises(ValueError, match="twice"):
        bucket([p, p])


@settings(max_examples=200, deadline=None)
@given(shapes, st.integers(1, 7))
def test_shards_are_equal_in_size_and_together_the_full_tensor(shape, size):
    full = counted(shape, 1)
    shards = [shard(full, rank, size) for rank in range(size)]
    width = shard_numel(full.numel(), size)
    assert {tuple(piece.shape) for piece in shards} == {(width,)}
    assert 0 <= width * size - full.numel() < size
    assert sum(float(piece.sum()) for piece in shards) == float(full.sum())
    assert torch.equal(torch.cat(shards)[full.numel() :], torch.zeros(width * size - full.numel()))
    assert torch.equal(unshard(shards, shape), full)


def test_a_shard_is_a_copy_and_padding_may_fill_a_whole_shard():
    full = torch.arange(1.0, 6.0)
    shards = [shard(full, rank, 4) for rank in range(4)]
    assert [piece.tolist() for piece in shards] == [[1, 2], [3, 4], [5, 0], [0, 0]]
    shards[0].zero_()
    assert full[0] == 1


def test_impossible_shards_are_refused_with_the_numbers():
    with pytest.raises(ValueError, match="rank 4 of 4"):
        shard(torch.zeros(8), 4, 4)
    with pytest.raises(ValueError, match="0 ranks"):
        shard_numel(8, 0)
    with pytest.raises(ValueError, match=r"\[2, 3\].*must have 3"):
        unshard([torch.zeros(2), torch.zeros(3)], (5,))
