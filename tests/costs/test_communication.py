"""The cost model, against algorithms that are written down as messages and counted."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from pedagogy.costs import communication as cost
from pedagogy.costs import published

RANKS = [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 17]


def rounds_of(algorithm: str, ranks: int, size: int) -> list[list[tuple[int, int, int]]]:
    """An all_reduce as rounds of messages (from, to, bytes) that happen at the same time."""
    if algorithm == "ring":
        step = [(r, (r + 1) % ranks, size // ranks) for r in range(ranks)]
        return [step] * (2 * (ranks - 1))
    if algorithm == "naive":
        return [[(r, 0, size)] for r in range(1, ranks)] + [[(0, r, size)] for r in range(1, ranks)]
    if algorithm == "parameter_server":
        return [[(r, -1, size)] for r in range(ranks)] + [[(-1, r, size)] for r in range(ranks)]
    if algorithm == "tree":
        down, reach = [], 1
        while reach < ranks:
            down.append([(r, r + reach, size) for r in range(reach) if r + reach < ranks])
            reach *= 2
        return [[(to, r, n) for r, to, n in step] for step in reversed(down)] + down
    core = 2 ** int(math.log2(ranks))
    fold = [[(core + r, r, size) for r in range(ranks - core)]] if core < ranks else []
    halve, distance, piece = [], core // 2, size // 2
    while distance:
        halve.append([(r, r ^ distance, piece) for r in range(core)])
        distance, piece = distance // 2, piece // 2
    unfold = [[(to, r, n) for r, to, n in step] for step in fold]
    return fold + halve + halve[::-1] + unfold


@pytest.mark.parametrize("algorithm", cost.ALGORITHMS)
@pytest.mark.parametrize("ranks", RANKS)
def test_bytes_and_seconds_are_those_of_the_messages_counted_one_by_one(algorithm, ranks):
    size, alpha, beta = 16 * math.prod(RANKS), 3.0, 0.25
    rounds = rounds_of(algorithm, ranks, size)
    sent = Counter()
    for sender, _, num_bytes in (message for step in rounds for message in step):
        sent[sender] += num_bytes
    seconds = sum(alpha + beta * max(n for _, _, n in step) for step in rounds)
    assert cost.total_bytes(size, ranks, algorithm) == sum(sent.values())
    assert cost.busiest_rank_bytes(size, ranks, algorithm) == max(sent.values(), default=0)
    modelled = cost.all_reduce_seconds(size, ranks, alpha, beta, algorithm)
    assert modelled == pytest.approx(seconds, rel=1e-12)


def test_a_ring_rank_sends_less_than_twice_the_tensor_for_any_number_of_ranks():
    assert cost.ring_all_reduce_bytes(1000, 1) == 0
    assert cost.ring_all_reduce_bytes(1000, 2) == 1000
    assert cost.ring_all_reduce_bytes(1000, 4) == 1500
    assert all(cost.ring_all_reduce_bytes(1000, n) < 2000 for n in (10, 1000, 10**6))


@pytest.mark.parametrize("ranks", [4, 8, 16])
def test_the_published_cost_models_give_the_same_seconds(ranks):
    size, alpha, beta = 10**6, 1e-5, 1e-9
    rows = {row["algorithm"]: row["cost"] for row in published.table("allreduce_cost_models").rows}
    forms = {
        "ring": ("2(P-1)a + 2(P-1)/P n b", 2 * (ranks - 1), 2 * (ranks - 1) / ranks),
        "halving_doubling": (
            "2log2P a + 2(P-1)/P n b",
            2 * math.log2(ranks),
            2 * (ranks - 1) / ranks,
        ),
        "tree": ("2log2P a + 2 n log2P b", 2 * math.log2(ranks), 2 * math.log2(ranks)),
    }
    labels = {
        "ring": "ring",
        "halving_doubling": "recursive halving-doubling (Rabenseifner)",
        "tree": "binomial reduce + broadcast",
    }
    for algorithm, (form, messages, copies) in forms.items():
        assert rows[labels[algorithm]].startswith(form)
        expected = messages * alpha + copies * size * beta
        assert cost.all_reduce_seconds(size, ranks, alpha, beta, algorithm) == pytest.approx(
            expected
        )


@pytest.mark.parametrize("ranks", [4, 5, 8, 64])
def test_the_ring_overtakes_the_tree_exactly_at_the_crossover(ranks):
    alpha, beta = 2e-5, 1e-9
    size = cost.crossover_bytes(ranks, alpha, beta)
    ring, tree = (
        [cost.all_reduce_seconds(size * f, ranks, alpha, beta, a) for f in (0.99, 1.0, 1.01)]
        for a in ("ring", "tree")
    )
    assert ring[0] > tree[0]
    assert ring[1] == pytest.approx(tree[1])
    assert ring[2] < tree[2]


def test_a_crossover_may_be_everywhere_or_nowhere():
    assert cost.crossover_bytes(2, 1e-5, 1e-9) == 0  # two ranks: as few messages, half the bytes
    assert cost.crossover_bytes(8, 1e-5, 1e-9, small="ring", large="tree") == math.inf
    assert cost.crossover_bytes(8, 1e-5, 1e-9, "ring", "halving_doubling") == 0


def test_bus_bandwidth_factors_are_those_that_nccl_tests_documents():
    words = {
        "AllReduce": "all_reduce",
        "ReduceScatter": "reduce_scatter",
        "AllGather": "all_gather",
    }
    words |= {"AlltoAll": "all_to_all", "Broadcast": "broadcast", "Reduce": "reduce"}
    values = {"2(n-1)/n": 2 * 7 / 8, "(n-1)/n": 7 / 8, 1: 1}
    rows = [r for r in published.table("nccl_busbw_factors").rows if r["collective"] in words]
    assert len(rows) == len(words)
    for row in rows:
        assert cost.bus_bandwidth_factor(words[row["collective"]], 8) == values[row["factor"]]


def test_scaling_efficiency_counts_only_the_communication_that_shows():
    exact = {"alpha": 0.0, "beta": 1e-9, "num_bytes": 10**9, "ranks": 2}  # 1 s on the wire
    assert cost.scaling_efficiency(compute_seconds=3, **exact) == pytest.approx(0.75)
    assert cost.scaling_efficiency(
        compute_seconds=3, overlap_seconds=0.5, **exact
    ) == pytest.approx(3 / 3.5)
    assert cost.scaling_efficiency(compute_seconds=3, overlap_seconds=2, **exact) == 1
    assert cost.scaling_efficiency(compute_seconds=3, **exact | {"ranks": 1}) == 1


def test_impossible_questions_are_refused_with_the_numbers():
    with pytest.raises(ValueError, match="-1 bytes on 4 ranks"):
        cost.ring_all_reduce_bytes(-1, 4)
    with pytest.raises(ValueError, match="5 bytes on 0 ranks"):
        cost.all_reduce_seconds(5, 0, 1, 1)
    with pytest.raises(ValueError, match="'star': choose one of 'ring', 'tree'"):
        cost.all_reduce_seconds(5, 2, 1, 1, algorithm="star")
    with pytest.raises(ValueError, match="'gossip': choose one of 'all_reduce'"):
        cost.bus_bandwidth_factor("gossip", 2)
    with pytest.raises(ValueError, match="overlap 4 s"):
        cost.scaling_efficiency(2, 3, 0, 0, 0, overlap_seconds=4)
