"""Chapter 03: the references are what PyTorch computes, and natural answers are told apart."""

from __future__ import annotations

import sys

import cloudpickle
import pytest
import torch
from torch.nn import functional

from pedagogy.collectives import copy_to, reduce_from
from pedagogy.exercises import engine, prediction
from pedagogy.exercises.chapter03 import MLP, NAMES, whole_tensors
from pedagogy.exercises.chapter03_bytes import BYTES
from pedagogy.exercises.chapter03_loss import LOGITS, LOSS, whole_logits
from pedagogy.exercises.chapter03_predictions import (
    ACTIVATIONS,
    ALL_REDUCES,
    CLIPPED,
    NORMS,
    ROWS,
    SAVING,
)
from pedagogy.exercises.chapter03_ring import RANKS, RING_ATTENTION, whole_sequence
from pedagogy.exercises.chapter03_softmax import MERGE, block_of
from pedagogy.ranks import launch
from pedagogy.tensor_parallel import (
    ParallelBlock,
    RegatheringBlock,
    SequenceParallelBlock,
    vocab_parallel_cross_entropy,
)
from pedagogy.workloads import Block

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def values_of(exercise):
    """What the reference returns: [rank][case]."""
    verdict = engine.judge(exercise, exercise.reference)
    assert verdict.kind == "correct"
    return verdict.outcome.value


def test_the_layer_on_ranks_is_the_whole_layer_with_its_gradients():
    found = values_of(MLP)
    for case, sizes in enumerate([(3, 4, 8), (5, 2, 6)]):
        whole = [tensor.requires_grad_() for tensor in whole_tensors(*sizes)]
        x, w_in, b_in, w_out, b_out = whole
        y = functional.linear(functional.gelu(functional.linear(x, w_in, b_in)), w_out, b_out)
        (y * torch.arange(1.0, y.numel() + 1).view(y.shape) / y.numel()).sum().backward()
        gradients = dict(zip(NAMES, whole, strict=True))
        for rank, answers in enumerate(found):
            torch.testing.assert_close(answers[case]["the output"], y.detach())
            for name, dim in (("x", None), ("w_in", 0), ("b_in", 0), ("w_out", 1), ("b_out", None)):
                want = gradients[name].grad
                want = want if dim is None else want.chunk(2, dim)[rank]
                torch.testing.assert_close(answers[case][f"the gradient of {name}"], want)


def _of_the_package(group, x, w_in, b_in, w_out, b_out):
    z = functional.gelu(functional.linear(copy_to(group, x), w_in, b_in))
    return reduce_from(group, functional.linear(z, w_out)) + b_out


def _in_two_sums(group, x, w_in, b_in, w_out, b_out):
    z = functional.gelu(functional.linear(copy_to(group, x), w_in, b_in))
    halves = z.chunk(2, -1)
    weights = w_out.chunk(2, 1)
    parts = [functional.linear(one, w) for one, w in zip(halves, weights, strict=True)]
    return sum(reduce_from(group, part) for part in parts) + b_out


def _gathers_the_middle(group, x, w_in, b_in, w_out, b_out):
    group.all_gather(w_in.detach())
    return _of_the_package(group, x, w_in, b_in, w_out, b_out)


def test_f_and_g_of_the_package_are_accepted():
    assert engine.explain(MLP, _of_the_package).startswith(engine.CORRECT)


def test_more_than_one_all_reduce_each_way_is_too_many():
    verdict = engine.judge(MLP, _in_two_sums)
    assert "it takes 2 all_reduces forward and 1 backward; one each way is enough" in verdict.detail


def test_any_other_collective_is_named():
    verdict = engine.judge(MLP, _gathers_the_middle)
    assert "it uses all_gather; two all_reduces are enough" in verdict.detail


def test_C15_a_divided_bias_is_told_by_its_gradient():
    (mistake,) = [one for one, _ in MLP.mistakes if one.__name__ == "_bias_divided"]
    assert "the gradient of b_out" in engine.known_verdict(MLP, mistake).detail


def test_the_loss_on_ranks_is_that_of_all_logits():
    for answers in values_of(LOSS):
        for answer, case in zip(answers, LOGITS, strict=True):
            want = functional.cross_entropy(*whole_logits(*case))
            torch.testing.assert_close(answer, want)


def test_every_rank_has_some_of_the_labels():
    for case in LOGITS:
        _, labels = whole_logits(*case)
        assert 0 < int((labels < 8).sum()) < len(labels)


def test_the_package_s_own_loss_is_accepted():
    assert engine.explain(LOSS, vocab_parallel_cross_entropy).startswith(engine.CORRECT)


def test_merged_blocks_are_the_softmax_of_all_keys():
    draw = torch.Generator().manual_seed(0)
    scores, values = torch.randn(4, 9, generator=draw), torch.randn(9, 3, generator=draw)
    met = block_of(scores[:, :2], values[:2])
    for start, end in ((2, 6), (6, 9)):
        met = MERGE.reference(*met, *block_of(scores[:, start:end], values[start:end]))
    _, total, output = met
    torch.testing.assert_close(output / total[:, None], scores.softmax(-1) @ values)


def test_a_merge_leaves_its_arguments_alone():
    def in_place(m1, l1, o1, m2, l2, o2):
        m, total, output = MERGE.reference(m1, l1, o1, m2, l2, o2)
        o1.copy_(output)
        return m, total, o1

    assert "it changes its argument `o1` in place" in engine.explain(MERGE, in_place).lower()


def test_ring_attention_is_pytorch_s_attention():
    q, k, v = whole_sequence()
    for rank, answers in enumerate(values_of(RING_ATTENTION)):
        for answer, causal in zip(answers, (False, True), strict=True):
            attend = functional.scaled_dot_product_attention
            want = attend(q[None, None], k[None, None], v[None, None], is_causal=causal)[0, 0]
            torch.testing.assert_close(answer, want.chunk(RANKS)[rank])


def _with_handles(group, q, k, v, causal):
    """Sends while it computes, keys and values apart, and merges at the end."""
    rank, size = group.rank, group.size
    keys, values, met = k, v, []
    for step in range(size):
        handles = []
        if step < size - 1:
            next_keys, next_values = torch.empty_like(k), torch.empty_like(v)
            for there, here in ((keys, next_keys), (values, next_values)):
                handles.append(group.irecv_(here, (rank - 1) % size))
                handles.append(group.isend_(there, (rank + 1) % size))
        source = (rank - step) % size
        positions = torch.arange(len(q))
        later = positions + source * len(q) > positions[:, None] + rank * len(q)
        scores = q @ keys.T / q.size(-1) ** 0.5
        met.append((scores.masked_fill(later & causal, -torch.inf), values))
        for handle in handles:
            handle.wait()
        if step < size - 1:
            keys, values = next_keys, next_values
    scores = torch.cat([one for one, _ in met], -1).softmax(-1)
    return scores @ torch.cat([one for _, one in met])


def test_a_ring_that_sends_while_it_computes_is_accepted():
    assert engine.explain(RING_ATTENTION, _with_handles).startswith(engine.CORRECT)


def _sent(group, sequence, hidden):
    """Bytes that a real layer of each kind sends, forward and backward, in fp32."""
    torch.manual_seed(0)
    whole, found = Block(hidden, 4, sequence), []
    for kind in (ParallelBlock, SequenceParallelBlock, RegatheringBlock):
        layer = kind(group, whole)
        rows = sequence if kind is ParallelBlock else sequence // group.size
        x = torch.randn(1, rows, hidden, requires_grad=True)
        before = len(group.events)
        layer(x).sum().backward()
        found.append(sum(event.nbytes for event in group.events[before:]))
    return found


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_bytes_of_the_exercise_are_those_of_the_real_layers(ranks):
    want = list(BYTES.reference(8, 16, ranks).values())
    for found in launch(_sent, ranks, 8, 16):
        assert found == [2 * sent for sent in want]  # fp32 has twice the bytes of 16 bit


def test_K10_norms_are_whole_on_every_rank():
    assert prediction.judge(NORMS, 266_240).startswith("correct")
    assert "one norm a layer" in prediction.judge(NORMS, 65_536)
    assert "everything twice" in prediction.judge(NORMS, 524_288)


def test_K11_eight_ranks_keep_a_fifth_and_not_an_eighth():
    assert prediction.judge(ACTIVATIONS, 0.579).startswith("correct")
    assert "divides everything" in prediction.judge(ACTIVATIONS, 0.359)
    assert prediction.judge(SAVING, "38%").startswith("correct")
    assert "the GB that go" in prediction.judge(SAVING, 0.22)
    assert "the GB that stay" in prediction.judge(SAVING, 0.359)


def test_C09_the_norm_counts_whole_gradients_once():
    assert prediction.judge(CLIPPED, 5.0).startswith("correct")
    assert "on both ranks" in prediction.judge(CLIPPED, 5.8310)
    assert "one rank sees" in prediction.judge(CLIPPED, 4.1231)
    assert "three norms added up" in prediction.judge(CLIPPED, 8.66)
    assert "a norm, 3, to a squared norm, 8" in prediction.judge(CLIPPED, 11)


def test_C18_rank_1_has_25041_real_rows():
    assert prediction.judge(ROWS, 25_041).startswith("correct")


def test_a_layer_makes_four_all_reduces():
    assert prediction.judge(ALL_REDUCES, 4).startswith("correct")
