"""Two levels of gates, and two levels of network: equal to one, in fewer messages."""

import sys

import cloudpickle
import pytest
import torch

from pedagogy.collectives import all_to_all
from pedagogy.moe import (
    ExpertParallelMoE,
    expected_load,
    hierarchical_all_to_all,
    hierarchical_gate,
    hierarchical_load,
    two_level_exchange,
)
from pedagogy.ranks import grid, launch
from tests.moe.cutting import HIDDEN, SAME, make_layer, random

cloudpickle.register_pickle_by_value(sys.modules[__name__])

RANKS = 6
NODES = [3, 2, 1, 6]  # of 2, 3, 6 and 1 ranks


def gates_one_by_one(primary, secondary, k):
    """G_primary(x)_i G_i(x)_j, each a softmax over its k largest."""
    groups, each = secondary.shape[1:]
    dense = torch.zeros(len(primary), groups * each, dtype=torch.float64)
    for token in range(len(primary)):
        outer = primary[token].topk(k)
        for group, share in zip(outer.indices.tolist(), outer.values.softmax(0), strict=True):
            inner = secondary[token, group].topk(k)
            for expert, part in zip(inner.indices.tolist(), inner.values.softmax(0), strict=True):
                dense[token, group * each + expert] = share * part
    return dense


@pytest.mark.parametrize("k", [1, 2, 3])
def test_two_level_gates_are_products_of_softmaxes(k):
    primary, secondary = random(4, 20, 3), random(5, 20, 3, 4)
    routing = hierarchical_gate(primary, secondary, k)
    expected = gates_one_by_one(primary, secondary, k)
    torch.testing.assert_close(routing.gates, expected, **SAME)
    torch.testing.assert_close(expected.sum(1), torch.ones(20, dtype=torch.float64))
    torch.testing.assert_close(routing.probabilities.sum(1), torch.ones(20, dtype=torch.float64))
    assert routing.experts.shape == (20, k * k)


def test_two_level_buffers_have_a_capacity_and_16_bits_are_widened():
    narrow = torch.zeros(5, 2, dtype=torch.bfloat16), torch.zeros(5, 2, 3, dtype=torch.bfloat16)
    routing = hierarchical_gate(*narrow, 1, capacity=2)
    assert routing.kept.flatten().tolist() == [True, True, False, False, False]
    assert routing.probabilities.dtype == routing.weights.dtype == torch.float32
    assert hierarchical_gate(torch.zeros(0, 2), torch.zeros(0, 2, 3), 2).experts.shape == (0, 4)


@pytest.mark.parametrize(
    ("groups", "k", "says"),
    [(3, 1, r"primary \(5, 3\) for secondary \(5, 2, 4\)"), (2, 3, "k is 3; with 2 experts"),
     (2, 0, "k is 0")],
)  # fmt: skip
def test_two_levels_that_do_not_fit_are_refused(groups, k, says):
    with pytest.raises(ValueError, match=says):
        hierarchical_gate(torch.zeros(5, groups), torch.zeros(5, 2, 4), k)


def test_the_load_of_two_levels_is_that_of_appendix_B():
    """Load_H(X)_ij = Load_primary(X)_i Load_i(X^(i))_j / |X^(i)|, with X^(i) what i was sent."""
    primary, secondary, ones = random(0, 30, 3), random(1, 30, 3, 4), torch.ones(30, 4)
    chosen = primary.topk(2).indices
    within, sent = [], []
    for group in range(3):
        mine = (chosen == group).any(1)
        logits = secondary[mine, group]
        within.append(expected_load(logits, logits, ones[mine], 2))
        sent.append(int(mine.sum()))
    outer = expected_load(primary, primary, ones[:, :3], 2)
    found = hierarchical_load(outer, torch.stack(within), torch.tensor(sent)).view(3, 4)
    for i in range(3):
        for j in range(4):
            expected = outer[i].item() * within[i][j].item() / sent[i]
            assert found[i, j].item() == pytest.approx(expected, rel=1e-12)
    nobody = hierarchical_load(torch.ones(2), torch.zeros(2, 3), torch.tensor([0, 1]))
    assert nobody.tolist() == [0] * 6
    with pytest.raises(ValueError, match="2 groups' loads, 3 groups' experts and 2 counts"):
        hierarchical_load(torch.ones(2), torch.ones(3, 2), torch.ones(2))


def parts(group):
    """For rank `to`, rows of its own number: none for some, and of one or three dimensions."""
    xs = [random(100 * group.rank + to, (group.rank + to) % 3, 2) for to in range(RANKS)]
    xs[0], xs[1] = random(group.rank, 4), random(group.rank, 2, 1, 2)
    return [x.requires_grad_() for x in xs]


def there_and_back(exchange, group):
    """What arrives, and the gradients that come home; by 1, 2, 3 ... times the receiver's rank."""
    xs = parts(group)
    arrived = exchange(xs)
    sum((i + 1) * (group.rank + 1) * y.square().sum() for i, y in enumerate(arrived)).backward()
    return arrived, [x.grad for x in xs]


def both_ways(group):
    torch.set_num_threads(1)
    flat = there_and_back(lambda xs: all_to_all(group, xs), group)
    found = {}
    for nodes in NODES:
        axes = grid(group, node=nodes, place=RANKS // nodes)
        exchange = two_level_exchange(axes["place"], axes["node"])
        levels = there_and_back(exchange, group)
        same = all(torch.equal(a, b) for f, t in zip(flat, levels, strict=True)
                   for a, b in zip(f, t, strict=True))  # fmt: skip
        xs, start = parts(group), len(group.events)
        hierarchical_all_to_all(axes["place"], axes["node"], xs)
        across = set(axes["node"].ranks) - {group.ranks[group.rank]}
        between = [e for e in group.events[start:] if set(e.peers) == across][:1]  # then its shapes
        mine = group.rank // (RANKS // nodes)
        leaving = sum(x.nbytes for to, x in enumerate(xs) if to // (RANKS // nodes) != mine)
        found[nodes] = same, leaving, sum(e.nbytes for e in between), len(across)
    axes = grid(group, node=3, place=2)
    return found, layers(group, axes), said(axes)


def layers(group, axes):
    """Whether an expert-parallel layer does the same by both exchanges."""
    results = []
    for exchange in (None, two_level_exchange(axes["place"], axes["node"])):
        layer = ExpertParallelMoE(group, make_layer(RANKS), exchange)
        x = random(group.rank, group.rank, HIDDEN).requires_grad_()  # rank 0 has no token
        output = layer(x)
        output.square().sum().backward()
        results.append([output.detach(), x.grad, *(p.grad for p in layer.parameters())])
    return all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def said(axes):
    """What is said of a wrong number of tensors, and of two dtypes."""
    wrong = [torch.zeros(1)] * 5, [torch.zeros(1)] * 5 + [torch.zeros(1).double()]
    texts = []
    for xs in wrong:
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            hierarchical_all_to_all(axes["place"], axes["node"], xs)
        texts.append(str(caught.value))
    return texts


@pytest.fixture(scope="module")
def run():
    """Six ranks, laid out as three, two, one and six nodes."""
    return launch(both_ways, RANKS)


def test_two_levels_give_what_the_flat_exchange_gives_and_bring_its_gradients(run):
    assert all(found[nodes][0] for found, _, _ in run for nodes in NODES)
    assert all(layer for _, layer, _ in run)


def test_the_same_bytes_leave_the_nodes_in_fewer_messages(run):
    for nodes in NODES:
        leaving = sum(found[nodes][1] for found, _, _ in run)
        assert sum(found[nodes][2] for found, _, _ in run) == leaving
        assert (leaving > 0) == (nodes > 1)
        assert {found[nodes][3] for found, _, _ in run} == {nodes - 1}  # flat: 6 - 6 / nodes


def test_what_cannot_be_exchanged_is_refused(run):
    for _, _, (number, dtypes) in run:
        assert "5 tensors for 6 ranks (3 nodes of 2)" in number
        assert "float32" in dtypes
        assert "float64" in dtypes
