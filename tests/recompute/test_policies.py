"""Plans for chains: the published row, the two closed forms, and a machine that runs a plan."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pedagogy.costs import published
from pedagogy.recompute import plan

BATCH = 200
KINDS = {"conv": 200.0, "fc": 40.0, "relu": 1.0, "lrn": 2.0, "pool": 1.0, "drop": 1.0}


def out(size, kernel, stride, padding=0):
    return (size + 2 * padding - kernel) // stride + 1


def alexnet():
    """Kinds and output bytes of AlexNet's layers, from kernels and strides (two towers in one)."""
    layers, size = [], 227
    for channels, kernel, stride, padding, tail in (
        (96, 11, 4, 0, ("relu", "lrn", "pool")),
        (256, 5, 1, 2, ("relu", "lrn", "pool")),
        (384, 3, 1, 1, ("relu",)),
        (384, 3, 1, 1, ("relu",)),
        (256, 3, 1, 1, ("relu", "pool")),
    ):
        for kind in ("conv", *tail):
            if kind == "conv":
                size = out(size, kernel, stride, padding)
            if kind == "pool":
                size = out(size, 3, 2)
            layers.append((kind, 4 * BATCH * channels * size * size))
    for width, tail in ((4096, ("relu", "drop")), (4096, ("relu", "drop")), (1000, ())):
        layers += [(kind, 4 * BATCH * width) for kind in ("fc", *tail)]
    return layers


def test_alexnets_row_follows_from_its_layers():
    layers = alexnet()
    kept = [i for i, (kind, _) in enumerate(layers) if kind in ("conv", "fc")]
    row = published.table("superneurons_table1").rows[0]
    for policy, printed in (("speed", "speed"), ("memory", "memory"), ("cost", "cost_aware")):
        found = plan(
            [KINDS[kind] for kind, _ in layers],
            [nbytes for _, nbytes in layers],
            policy,
            kept=kept,
            input_size=4 * BATCH * 3 * 227 * 227,
        )
        assert found.extra_forwards == row[f"{printed}_extra"]
        assert round(found.peak / 2**20, 3) == row[f"{printed}_peak_MB"]
        assert [len(segment.layers) for segment in found.segments] == [3, 3, 1, 1, 2, 2, 2]
    assert [found.segments[i].policy for i in (0, 1)] == ["memory", "speed"]


def test_without_a_list_the_layers_above_the_average_cost_are_kept():
    assert [s.layers for s in plan([1, 9, 1, 1, 9], [1] * 5, "speed").segments] == [(0,), (2, 3)]


@pytest.mark.parametrize("n", [1, 2, 5, 12])
def test_a_segment_of_n_runs_n_or_half_of_n_times_n_plus_1(n):
    one = {"costs": [9.0] + [1.0] * n, "sizes": [1] * (n + 1), "kept": [0]}
    assert plan(policy="speed", **one).extra_forwards == n
    assert plan(policy="memory", **one).extra_forwards == n * (n + 1) // 2
    assert plan(policy="memory", **one).extra_cost == n * (n + 1) / 2


CHAINS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), min_size=1, max_size=9
)


def lists(chain):
    """Costs, sizes, kept."""
    costs, sizes, kept = zip(*chain, strict=True)
    return list(costs), list(sizes), [i for i, keep in enumerate(kept) if keep]


@settings(max_examples=60, deadline=None)
@given(CHAINS, st.integers(0, 9))
def test_the_cost_aware_plan_lies_between_the_two_others(chain, input_size):
    costs, sizes, kept = lists(chain)
    speed, memory, cost = (
        plan(costs, sizes, policy, kept=kept, input_size=input_size)
        for policy in ("speed", "memory", "cost")
    )
    assert memory.peak <= cost.peak <= speed.peak
    assert speed.extra_forwards <= cost.extra_forwards <= memory.extra_forwards
    assert cost.peak == memory.peak  # what fits under the largest layer costs no byte


def machine(costs, sizes, kept, input_size, fast):
    """Runs backward over the chain with a store of outputs; `fast(segment)`: how.

    Returns how often something ran again, the sum of its costs, and the most bytes that one
    layer's backward had in hand, a stretch that is kept counted at its last layer, as in the paper.
    """
    nbytes = {-1: input_size, **dict(enumerate(sizes))}
    runs, spent, peak, store = 0, 0, 0, {-1, *kept}
    stretches, stretch = {}, []
    for layer in range(len(sizes)):
        stretch = [] if layer in kept else [*stretch, layer]
        for member in stretch:
            stretches[member] = list(stretch)

    def have(layer):
        """The outputs that exist on the way of making this one."""
        nonlocal runs, spent
        if layer in store:
            return
        have(layer - 1)
        runs, spent = runs + 1, spent + costs[layer]
        store.add(layer)

    for layer in reversed(range(len(sizes))):
        segment = stretches.get(layer, [])
        have(layer)  # its own backward reads its output and its input
        own = {layer - 1, layer}
        if segment and fast(segment) and layer == segment[-1]:
            own |= {segment[0] - 1, *segment}
        peak = max(peak, sum(nbytes[x] for x in own) + nbytes[layer] + nbytes[layer - 1])
        gone = {layer} if segment and fast(segment) else set(segment)
        store -= gone - set(kept)
    return runs, spent, peak


@settings(max_examples=60, deadline=None)
@given(CHAINS, st.integers(0, 9))
def test_plans_cost_what_a_machine_that_runs_them_counts(chain, input_size):
    costs, sizes, kept = lists(chain)
    for policy, fast in (("speed", lambda s: True), ("memory", lambda s: False)):
        found = plan(costs, sizes, policy, kept=kept, input_size=input_size)
        right = machine(costs, sizes, kept, input_size, fast)
        assert (found.extra_forwards, found.extra_cost, found.peak) == right


def test_a_budget_is_what_cost_may_use_and_what_every_plan_must_keep():
    one = {"costs": [9, 1, 1, 9], "sizes": [4, 4, 4, 4], "kept": [0, 3]}
    assert plan(policy="speed", **one).peak == 20
    assert plan(policy="cost", **one).extra_forwards == 3
    assert plan(policy="cost", budget=20, **one).extra_forwards == 2
    assert plan(policy="cost", budget=19, **one).extra_forwards == 3
    with pytest.raises(ValueError, match="needs 20 bytes, 1 over the budget 19"):
        plan(policy="speed", budget=19, **one)
    with pytest.raises(ValueError, match="needs 16 bytes, 1 over the budget 15"):
        plan(policy="memory", budget=15, **one)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], [], "speed"), "0 costs and 0 sizes"),
        (([1, 2], [1], "speed"), "2 costs and 1 sizes"),
        (([1, -2], [1, 1], "speed"), "0 or more"),
        (([1], [1], "fast"), "'fast': choose one of speed, memory, cost"),
        (([1, 1], [1, 1], "cost", None, [2, 5]), r"kept layers \[2, 5\]: there are layers 0 to 1"),
    ],
)
def test_bad_chains_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        plan(*arguments)
