"""Partitions, against every split there is; and plans, against what PipeDream found."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pedagogy.pipeline.partition import LayerCost, Plan, partition, partition_replicated


def splits(num_layers: int, num_stages: int) -> list[list[tuple[int, int]]]:
    """Every way to cut layers into contiguous stages that are not empty."""
    return [
        list(zip((0, *cuts), (*cuts, num_layers), strict=True))
        for cuts in combinations(range(1, num_layers), num_stages - 1)
    ]


# Partitioning by time


def test_torchgpipes_example_is_cut_as_there():
    # torchgpipe's block partition solves [1..6] in 3 as [1, 2, 3], [4, 5], [6]
    assert partition([1, 2, 3, 4, 5, 6], 3) == [(0, 3), (3, 5), (5, 6)]


def test_equal_layers_are_cut_evenly_and_a_remainder_goes_first():
    assert partition([1] * 4, 2) == [(0, 2), (2, 4)]
    assert partition([0.1] * 7, 3) == [(0, 3), (3, 5), (5, 7)]
    # layer 4 alone decides the largest stage; the four before are cut evenly all the same
    assert partition([1, 1, 1, 1, 5], 3) == [(0, 2), (2, 4), (4, 5)]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.data())
def test_no_split_has_a_smaller_largest_stage_or_is_as_small_and_more_even(costs, data):
    num_stages = data.draw(st.integers(1, len(costs)))

    def badness(split):
        sums = [sum(costs[first:last]) for first, last in split]
        return max(sums), sum(s**2 for s in sums), [-last for _, last in split]

    assert partition(costs, num_stages) == min(splits(len(costs), num_stages), key=badness)


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=7), st.data())
def test_measured_times_are_split_as_well_as_whole_numbers(costs, data):
    num_stages = data.draw(st.integers(1, len(costs)))

    def largest(split):
        return max(math.fsum(costs[first:last]) for first, last in split)

    found = partition(costs, num_stages)
    assert found in splits(len(costs), num_stages)
    assert largest(found) == min(map(largest, splits(len(costs), num_stages)))


@pytest.mark.parametrize(
    ("costs", "num_stages", "message"),
    [
        ([1, 2], 3, "3 stages for 2 layers.*from 1 to 2"),
        ([1, 2], 0, "0 stages for 2 layers"),
        ([1, -2], 2, "layer 1 costs -2"),
        ([float("nan")], 1, "layer 0 costs nan"),
    ],
)
def test_what_cannot_be_split_is_refused_with_the_numbers(costs, num_stages, message):
    with pytest.raises(ValueError, match=message):
        partition(costs, num_stages)


# Partitioning with replicas


def cost_of(layers: list[LayerCost], plan: list[tuple[int, int, int]], bandwidth: float) -> float:
    """Seconds per minibatch of a plan of (first, last, replicas), each part written out."""
    parts = []
    for first, last, m in plan:
        compute = sum(layers[k].seconds for k in range(first, last))
        weights = sum(layers[k].weight_bytes for k in range(first, last))
        parts += [compute / m, 4 * (m - 1) * weights / (m * m * bandwidth)]
        if last < len(layers):
            parts.append(2 * layers[last - 1].activation_bytes / bandwidth)
    return max(parts)


def plans(num_layers: int, num_machines: int) -> list[list[tuple[int, int, int]]]:
    """Every split with every way to hand all machines to its stages."""
    return [
        [(*stage, last - first) for stage, (first, last) in zip(split, machines, strict=True)]
        for num_stages in range(1, min(num_layers, num_machines) + 1)
        for split in splits(num_layers, num_stages)
        for machines in splits(num_machines, num_stages)
    ]


amounts = st.integers(0, 20)
layer_costs = st.lists(st.builds(LayerCost, amounts, amounts, amounts), min_size=1, max_size=5)


@settings(max_examples=60)
@given(layer_costs, st.integers(1, 5), st.sampled_from([0.5, 4.0, 64.0]))
def test_no_split_with_any_replicas_is_faster(layers, num_machines, bandwidth):
    found = partition_replicated(layers, num_machines, bandwidth)
    assert [tuple(stage) for stage in found.stages] in plans(len(layers), num_machines)
    every = [cost_of(layers, plan, bandwidth) for plan in plans(len(layers), num_machines)]
    assert found.seconds == pytest.approx(min(every), rel=1e-12)
    own = cost_of(layers, [tuple(stage) for stage in found.stages], bandwidth)
    assert own == pytest.approx(found.seconds, rel=1e-12)


def test_what_cannot_be_planned_is_refused_with_the_numbers():
    layer = LayerCost(1.0, 1.0, 1.0)
    for layers, machines, bandwidth in [([], 1, 1.0), ([layer], 0, 1.0), ([layer], 1, 0.0)]:
        with pytest.raises(ValueError, match=f"{len(layers)} layers on {machines} machines"):
            partition_replicated(layers, machines, bandwidth)


# What PipeDream found, from layer shapes: times proportional to FLOPs at 8 TFLOP/s, fp32,
# 10 Gbit/s = 1.25e9 bytes/s unless said

FLOPS, TEN_GIGABIT = 8e12, 1.25e9


def layer(multiply_adds: int, outputs: int, weights: int, batch: int) -> LayerCost:
    """2 FLOPs a multiply-add, and twice as many in backward as in forward."""
    return LayerCost(3 * 2 * multiply_adds * batch / FLOPS, 4 * outputs * batch, 4 * weights)


def conv(size: int, inputs: int, outputs: int, kernel: int, batch: int) -> LayerCost:
    """A convolution with a size x size output."""
    weights = kernel**2 * inputs * outputs
    return layer(weights * size**2, outputs * size**2, weights, batch)


def dense(inputs: int, outputs: int, batch: int) -> LayerCost:
    return layer(inputs * outputs, outputs, inputs * outputs, batch)


def vgg16(batch: int = 64) -> list[LayerCost]:
    layers, channels = [], 3
    blocks = [(224, 64, 2), (112, 128, 2), (56, 256, 3), (28, 512, 3), (14, 512, 3)]
    for size, width, depth in blocks:
        for _ in range(depth):
            layers.append(conv(size, channels, width, 3, batch))
            channels = width
        layers.append(LayerCost(0.0, 4 * width * (size // 2) ** 2 * batch, 0))  # pooling
    return [*layers, dense(25088, 4096, batch), dense(4096, 4096, batch), dense(4096, 1000, batch)]


def resnet50(batch: int = 128) -> list[LayerCost]:
    layers, channels = [conv(112, 3, 64, 7, batch)], 64
    for size, width, depth in [(56, 64, 3), (28, 128, 4), (14, 256, 6), (7, 512, 3)]:
        for _ in range(depth):
            layers += [conv(size, channels, width, 1, batch), conv(size, width, width, 3, batch)]
            layers += [conv(size, width, 4 * width, 1, batch)]
            channels = 4 * width
    return [*layers, dense(2048, 1000, batch)]


def replicas(plan: Plan) -> list[int]:
    return [stage.replicas for stage in plan.stages]


def test_the_profiles_have_the_published_numbers_of_parameters():
    weights = sum(layer.weight_bytes for layer in vgg16()) / 4
    assert weights == pytest.approx(138.36e6, rel=0.001)  # without biases
    # without the shortcuts' projections (2.8 million) and the norms
    assert sum(layer.weight_bytes for layer in resnet50()) / 4 == pytest.approx(22.7e6, rel=0.01)


@pytest.mark.parametrize(("num_machines", "released"), [(4, [3, 1]), (8, [7, 1]), (16, [15, 1])])
def test_vgg16_gets_replicated_convolutions_and_one_machine_for_the_dense_layers(
    num_machines, released
):
    layers = vgg16()
    for bandwidth in (TEN_GIGABIT / 2, TEN_GIGABIT):
        plan = partition_replicated(layers, num_machines, bandwidth)
        assert replicas(plan) == released
        assert plan.stages[1].first <= len(layers) - 3  # all three dense layers are in the last


@pytest.mark.parametrize("num_machines", [4, 8, 16])
def test_vgg16_is_plain_data_parallelism_once_the_wire_is_fast(num_machines):
    for bandwidth in (4 * TEN_GIGABIT, 16 * TEN_GIGABIT):
        assert replicas(partition_replicated(vgg16(), num_machines, bandwidth)) == [num_machines]


@pytest.mark.parametrize("num_machines", [4, 8, 16])
def test_resnet50_with_its_small_weights_is_plain_data_parallelism(num_machines):
    plan = partition_replicated(resnet50(), num_machines, TEN_GIGABIT)
    assert replicas(plan) == [num_machines]


def test_equal_layers_with_large_weights_and_small_activations_become_a_straight_pipeline():
    layers = [LayerCost(1.0, 1.0, 1e6)] * 4
    plan = partition_replicated(layers, 4, 1e3)
    assert [tuple(stage) for stage in plan.stages] == [(0, 1, 1), (1, 2, 1), (2, 3, 1), (3, 4, 1)]
    assert plan.seconds == 1.0
