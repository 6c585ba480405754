"""The chapter's evidence is true of what is right, and false of what is nearly right."""

import sys

import cloudpickle
import pytest
import torch

from pedagogy.ranks import Event, launch
from pedagogy.tensor_parallel import (
    ParallelBlock,
    ParallelGPT,
    ParallelMLP,
    RegatheringBlock,
    SequenceParallelBlock,
)
from pedagogy.tensor_parallel.evidence import (
    Evidence,
    between_sums,
    coefficients,
    copies_agree,
    cut_evidence,
    equals_one_process,
    evidence,
    exchanges,
    kept_bytes,
    paced,
)
from pedagogy.workloads import GPT, FeedForward, text_batch

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SIZE = (8, 2, 16, 4)  # sequence, batch, hidden, heads


def small_gpt():
    """One GPT, the same at each call, with a vocabulary that 2 ranks must pad."""
    torch.manual_seed(0)
    return GPT(257, layers=1, hidden=8, heads=2, sequence=4).double()


def one_step(model):
    """Logits of a batch, and gradients, on one process."""
    inputs, targets = text_batch(2, 4)
    logits = model(inputs)
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
    return evidence(model, logits)


def one_cut_step(group):
    model = ParallelGPT(group, small_gpt())
    inputs, targets = text_batch(2, 4)
    logits = model(inputs)
    model.loss_of(logits, targets).backward()
    return cut_evidence(group, model, logits)


def test_a_cut_gpt_is_put_together_under_the_ordinary_names_and_equals_one_process():
    alone, run = one_step(small_gpt()), launch(one_cut_step, 2)
    assert run[0].weights.keys() == alone.weights.keys()
    assert equals_one_process(run, alone)


@pytest.mark.parametrize("kind", ["outputs", "gradients", "weights"])
@pytest.mark.parametrize("rank", [0, 1])
def test_one_wrong_number_on_any_rank_is_noticed(kind, rank):
    alone = one_step(small_gpt())
    ranks = [one_step(small_gpt()) for _ in range(2)]
    assert equals_one_process(ranks, alone)
    held = getattr(ranks[rank], kind)
    tensor = held if kind == "outputs" else held["blocks.0.attention_norm.weight"]
    tensor.flatten()[0] += 1e-6
    assert not equals_one_process(ranks, alone)


def test_a_missing_name_and_no_rank_at_all_are_not_equal():
    alone, one = one_step(small_gpt()), one_step(small_gpt())
    one.weights.pop("norm.weight")
    assert not equals_one_process([one], alone)
    assert not equals_one_process([], alone)


def cut_feed_forward(group):
    torch.manual_seed(0)
    whole = FeedForward(6).double()
    x = torch.ones(1, 2, 6, dtype=torch.float64)
    y, cut = whole(x), ParallelMLP.from_feed_forward(group, whole)
    z = cut(x)
    (y.sum() + z.sum()).backward()
    return equals_one_process([cut_evidence(group, cut, z)], evidence(whole, y))


def test_rows_and_columns_are_put_together_on_three_ranks():
    assert list(launch(cut_feed_forward, 3)) == [True] * 3


def test_copies_that_differ_in_one_bit_do_not_agree():
    right, other = one_step(small_gpt()), one_step(small_gpt())
    assert copies_agree([right, other], ["norm.weight"])
    other.weights["norm.weight"][0] += 1e-15
    assert not copies_agree([right, other], ["norm.weight"])


def sent(group):
    return [exchanges(group, kind, SIZE) for kind in (ParallelBlock, RegatheringBlock)]


def test_exchanges_lists_both_directions_and_all_bytes():
    tensor, shard = launch(sent, 2)[0]
    whole = 8 * 2 * 16 * 4  # bytes
    assert tensor == ({"all_reduce": 2}, {"all_reduce": 2}, 4 * whole)
    assert shard.forward == {"all_gather": 2, "reduce_scatter": 2}
    assert shard.backward == {"all_gather": 4, "reduce_scatter": 2}
    assert shard.nbytes == 10 * whole // 2


def weights(group):
    sizes = (SIZE, (16, 2, 16, 4), (16, 1, 32, 8))
    return {size: kept_bytes(group, SequenceParallelBlock, size) for size in sizes}


def test_three_weights_give_the_coefficients_of_the_formula():
    assert coefficients(launch(weights, 2)[0]) == [2 + 14 / 2, 1 / 2, 4 / 2]


def test_sizes_that_do_not_tell_terms_apart_are_refused():
    with pytest.raises(ValueError, match="1 sizes; three are needed"):
        coefficients({SIZE: 100})
    with pytest.raises(ValueError, match="tell three terms apart"):
        coefficients({SIZE: 100, (8, 4, 16, 4): 200, (8, 6, 16, 4): 300})


def test_between_sums_is_all_the_time_that_no_all_reduce_takes():
    events = [
        Event(0, "all_reduce", "", 1.0, 2.0),
        Event(0, "all_reduce", "", 5.0, 6.0),
        Event(0, "barrier", "", 7.0, 8.0),
    ]
    found = [(one.kind, one.start, one.end) for one in between_sums(events, turn=3.0)]
    assert found == [
        ("forward", 0.0, 1.0),
        ("forward", 2.0, 3.0),
        ("backward", 3.0, 5.0),
        ("backward", 6.0, 7.0),
    ]


def two_spans(group):
    with paced(group, 0.02), group.span("F", "0"):
        pass
    with group.span("F", "1"):
        pass
    return [event.end - event.start for event in group.events]


def test_paced_makes_logged_spans_longer_and_only_inside_its_block():
    long, short = launch(two_spans, 1)[0]
    assert long >= 0.02 > short


def test_evidence_is_a_copy():
    model = small_gpt()
    found = one_step(model)
    assert isinstance(found, Evidence)
    with torch.no_grad():
        model.norm.weight += 1
    assert found.weights["norm.weight"].max() == 1
