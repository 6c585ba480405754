"""Expert parallelism where it is easily forgotten: frozen, tied, recomputed, narrow, refused."""

import sys

import cloudpickle
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from pedagogy.moe import ExpertParallelMoE, MoELayer, NoisyTopKGate, SummedExperts
from pedagogy.ranks import launch
from tests.moe.cutting import HIDDEN, SAME, make_layer, random

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def frozen_on_one_rank(group):
    """Only the last rank's experts train, and the input has no gradient: all take part."""
    whole = make_layer()
    whole.experts[:2].requires_grad_(False)
    layer = ExpertParallelMoE(group, whole)
    layer(random(group.rank, 5, HIDDEN)).square().sum().backward()
    return [p.grad for p in layer.experts.parameters()]


def unfrozen_later(group):
    whole = make_layer()
    whole.experts.requires_grad_(False)
    layer = ExpertParallelMoE(group, whole)
    layer.experts.requires_grad_()
    layer(random(group.rank, 5, HIDDEN)).square().sum().backward()
    return [p.grad for p in layer.experts.parameters()]


def tied_twice(group):
    """Two experts of one rank are one, and two backwards accumulate."""
    whole = make_layer()
    for one in (0, 2):
        whole.experts[one] = whole.experts[one + 1]
    layer = ExpertParallelMoE(group, whole)
    for _ in range(2):
        layer(random(group.rank, 5, HIDDEN)).square().sum().backward()
    return [p.grad for p in layer.experts.parameters()]


def recomputed(group):
    """Rank 1 without tokens; forward runs again in backward, with its exchanges and its noise."""
    found = []
    for recompute in (False, True):
        torch.manual_seed(group.rank)
        layer = ExpertParallelMoE(group, make_layer(route=NoisyTopKGate(HIDDEN, 4, 2)))
        x = random(0, 6 - 6 * group.rank, HIDDEN).requires_grad_()
        torch.manual_seed(group.rank)
        output = checkpoint(layer, x, use_reentrant=False) if recompute else layer(x)
        (output.square().sum() + layer.router.loss).backward()
        found.append([output.detach(), x.grad, *(p.grad for p in layer.parameters())])
    return all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def in_16_bits(group):
    """The dtypes of output and gradients, in bfloat16 and under autocast."""
    low = ExpertParallelMoE(group, make_layer().bfloat16())
    output = low(random(group.rank, 5, HIDDEN).bfloat16())
    output.sum().backward()
    under = ExpertParallelMoE(group, make_layer().float())
    with torch.autocast("cpu", torch.bfloat16):
        autocast = under(random(group.rank, 5, HIDDEN).float())
    autocast.float().sum().backward()
    gradients = {p.grad.dtype for p in low.parameters()}, {p.grad.dtype for p in under.parameters()}
    return output.dtype, autocast.dtype, *gradients


def refused(group):
    """What is said of a router of other experts, by both layers, and of experts left over."""
    said = []
    for kind in (ExpertParallelMoE, SummedExperts):
        layer = kind(group, MoELayer(HIDDEN, 4, NoisyTopKGate(HIDDEN, 8, 2)))
        with pytest.raises(ValueError, match="among 8 experts; there are 4") as caught:
            layer(torch.zeros(3, HIDDEN))
        said.append(str(caught.value))
        with pytest.raises(ValueError, match="3 experts over 2 ranks"):
            kind(group, make_layer(3))
    return said


def sent_bytes(group):
    """What the exchanges of rows carry away, and twice 2 x hidden for each choice elsewhere."""
    layer = ExpertParallelMoE(group, make_layer().float())
    start = len(group.events)
    layer(random(group.rank, 9, HIDDEN).float().requires_grad_()).sum().backward()
    events = [e.nbytes for e in group.events[start:] if e.kind == "all_to_all"]
    elsewhere = layer.last.experts // 2 != group.rank
    return events, int(elsewhere.sum())


CORNERS = {f.__name__: f for f in
           (frozen_on_one_rank, unfrozen_later, tied_twice, recomputed, in_16_bits, refused,
            sent_bytes)}  # fmt: skip


def in_corners(group):
    torch.set_num_threads(1)
    return {name: corner(group) for name, corner in CORNERS.items()}


@pytest.fixture(scope="module")
def corners():
    """Two ranks, every corner."""
    return launch(in_corners, 2)


def gradients_alone(layer, times=1):
    """The mean over two ranks of the gradients of the sums of squares."""
    for rank in (0, 1):
        for _ in range(times):
            (layer(random(rank, 5, HIDDEN)).square().sum() / 2).backward()
    return [[p.grad for p in part.parameters()] for part in (layer.experts[:2], layer.experts[2:])]


def test_experts_frozen_on_one_rank_do_not_make_the_others_wait(corners):
    right = make_layer()
    right.experts[:2].requires_grad_(False)
    for rank, expected in enumerate(gradients_alone(right)):
        for mine, gradient in zip(corners[rank]["frozen_on_one_rank"], expected, strict=True):
            assert (mine is None) == (gradient is None) == (rank == 0)
            if rank:
                torch.testing.assert_close(mine, gradient, **SAME)


def test_experts_unfrozen_later_have_the_right_scale(corners):
    for rank, expected in enumerate(gradients_alone(make_layer())):
        torch.testing.assert_close(corners[rank]["unfrozen_later"], expected, **SAME)


def test_tied_experts_and_two_backwards_add_up(corners):
    right = make_layer()
    for one in (0, 2):
        right.experts[one] = right.experts[one + 1]
    for rank, expected in enumerate(gradients_alone(right, times=2)):
        torch.testing.assert_close(corners[rank]["tied_twice"], expected, **SAME)


def test_recomputed_in_backward_it_is_the_same_to_the_bit(corners):
    assert [rank["recomputed"] for rank in corners] == [True, True]


def test_16_bits_stay_16_bits(corners):
    half, full = torch.bfloat16, torch.float32
    assert [rank["in_16_bits"] for rank in corners] == [(half, half, {half}, {full})] * 2


def test_experts_that_do_not_fit_are_refused_on_every_rank(corners):
    assert all(len(rank["refused"]) == 2 for rank in corners)


def test_bytes_are_those_of_the_choices_elsewhere_there_and_back_twice(corners):
    (zero, there_0), (one, there_1) = (rank["sent_bytes"] for rank in corners)
    assert min(there_0, there_1) > 0
    row, counts = 4 * HIDDEN, 2 * 8  # float32; 2 experts a rank, int64
    # counts, there, back, and in backward: back, there
    assert zero == [counts] + [row * n for n in (there_0, there_1, there_0, there_1)]
    assert one == [counts] + [row * n for n in (there_1, there_0, there_1, there_0)]
