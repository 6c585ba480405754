"""Chapter 07: the references are what the package does, and what a search finds."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
import torch
from torch import nn

from pedagogy.exercises import engine, prediction
from pedagogy.exercises.chapter07 import CASES as TIMELINES
from pedagogy.exercises.chapter07 import MAKESPAN
from pedagogy.exercises.chapter07_cache import CASES as CACHES
from pedagogy.exercises.chapter07_cache import PLAN, plan_evictions, replay, steps
from pedagogy.exercises.chapter07_hooks import CASES as LOSSES
from pedagogy.exercises.chapter07_hooks import HOOKS, _drawn
from pedagogy.exercises.chapter07_host import CASES as TRAININGS
from pedagogy.exercises.chapter07_host import HOST, _towards
from pedagogy.exercises.chapter07_predictions import COPIES, EARLY, STALL, UNEQUAL
from pedagogy.exercises.chapter07_wrong_cache import furthest, least_recently, ruled
from pedagogy.offload import OffloadedOptimizer, offload_activations, simulate_offload, transfers
from pedagogy.ranks import Link


def values_of(exercise):
    """What the reference gives, by case."""
    verdict = engine.known_verdict(exercise, exercise.reference)
    assert verdict.kind == "correct"
    return verdict.outcome.value[0]


@pytest.fixture
def link():
    link = Link()
    yield link
    link.close()


def test_the_makespan_is_the_simulator_s():
    assert values_of(MAKESPAN) == [simulate_offload(*case).makespan for case in TIMELINES.values()]


def test_a_timeline_by_hand():
    """Layers of 2, 1 and 4 s, copies of 1, 3 and 2 s, all in one line."""
    place = list(TIMELINES).index("unequal layers, prefetch 0")
    assert values_of(MAKESPAN)[place] == 1 + 2 + 3 + 1 + 2 + 4


def test_stalls_by_hand():
    assert prediction.judge(STALL, [200, 50 + 3 * 20]).startswith("correct")
    assert prediction.judge(UNEQUAL, [190 - 120, 160 - 120]).startswith("correct")
    assert prediction.judge(COPIES, 8 + 7).startswith("correct")


def test_C77_a_target_that_is_read_before_the_copy_is_over_holds_what_was_there():
    assert prediction.judge(EARLY, "old").startswith("correct")
    assert "returns before the data is there" in prediction.judge(EARLY, "new")


AGAIN = "two tensors, one after the other in the same memory"


@pytest.mark.parametrize("label", [label for label in LOSSES if label != AGAIN])
def test_hooks_leave_the_gradients_and_send_what_the_package_sends(label, link):
    loss_of, shapes = LOSSES[label]
    plain, offloaded = (
        [nn.Parameter(_drawn(*shape, seed=10 + i)) for i, shape in enumerate(shapes)]
        for _ in range(2)
    )
    loss_of(*plain).backward()
    with offload_activations(link, min_bytes=0):
        loss = loss_of(*offloaded)
    loss.backward()
    answer = values_of(HOOKS)[list(LOSSES).index(label)]
    torch.testing.assert_close(answer["the gradients"], [p.grad for p in plain], rtol=0, atol=0)
    assert answer["bytes to the host"] == link.to_host_bytes


def test_memory_that_is_used_again_leaves_the_gradient_of_both_tensors():
    answer = values_of(HOOKS)[list(LOSSES).index(AGAIN)]
    assert torch.equal(answer["the gradients"][0], _drawn(4, seed=1) + _drawn(4, seed=2))
    assert answer["bytes to the host"] == 2 * 16


def test_the_bytes_of_a_transpose_by_hand():
    """x (4, 3), rows (4, 4) once though saved twice, and rows @ rows.t() (4, 4)."""
    place = list(LOSSES).index("a tensor and its transpose")
    assert values_of(HOOKS)[place]["bytes to the host"] == 4 * (12 + 16 + 16)


@pytest.mark.parametrize(
    "label", [label for label in TRAININGS if "SGD" in label or "Adam" in label]
)
def test_training_on_the_host_is_the_package_s(label, link):
    values, num_steps, scale, make = TRAININGS[label]
    exact = torch.tensor(values).half()  # the package's masters begin as the weights
    module = nn.Module()
    module.weight = nn.Parameter(exact.clone())
    optimizer = OffloadedOptimizer(module, make.func, link, **make.keywords)
    for step in range(num_steps):
        gradient = _towards(scale)(step, module.weight.detach())
        optimizer.zero_grad()
        (module.weight * gradient).sum().backward()
        optimizer.step()
    weights, masters, crossed = HOST.reference(
        exact, exact.float(), num_steps, _towards(scale), make, torch.clone, torch.clone
    )
    assert torch.equal(weights, module.weight)
    assert torch.equal(masters, optimizer.copies[module.weight].host)
    assert crossed == link.to_host_bytes + link.to_device_bytes == 4 * len(values) * num_steps


def test_an_update_that_fp16_loses_is_kept_in_the_masters():
    answer = values_of(HOST)[list(TRAININGS).index("updates that fp16 loses, 12 steps")]
    begun = torch.tensor([1.0, -1.5, 2.5])
    step = 0.01 * _towards(0.01)(0, begun.half()).float()
    assert torch.equal((begun.half() - step.half()).float(), begun)
    assert not torch.equal(answer["the masters"], begun)


# --- the cache ------------------------------------------------------------------------------------


def fewest_bytes(uses, layer_bytes, capacity, held=frozenset()):
    """Every way to let go, whether it is needed or not; the least of all."""
    if not uses:
        return 0
    layer, *later = uses
    cost = 0 if layer in held else layer_bytes[layer]
    found = []
    for size in range(len(held) + 1):
        for kept in combinations(held - {layer}, size):
            there = frozenset(kept) | {layer}
            if sum(layer_bytes[one] for one in there) <= capacity:
                found.append(cost + fewest_bytes(later, layer_bytes, capacity, there))
    return min(found)


def drawn_case(seed, equal):
    draw = random.Random(seed)
    layer_bytes = [5] * 4 if equal else [draw.randint(1, 9) for _ in range(4)]
    capacity = draw.randint(max(layer_bytes), sum(layer_bytes))
    return [draw.randrange(4) for _ in range(8)], layer_bytes, capacity


@pytest.mark.parametrize("seed", range(12))
def test_no_way_to_let_go_copies_fewer_bytes(seed):
    case = drawn_case(seed, equal=seed % 3 == 0)
    assert replay(plan_evictions(*case), *case) == fewest_bytes(*case)


@pytest.mark.parametrize("seed", range(12))
def test_belady_is_the_optimum_for_equal_layers(seed):
    case = drawn_case(seed, equal=True)
    assert replay(ruled(*case, rule=furthest), *case) == replay(plan_evictions(*case), *case)


@pytest.mark.parametrize("num_layers", [2, 4, 6])
@pytest.mark.parametrize("room", [1, 2, 4])
def test_least_recently_used_is_the_optimum_forward_and_backward(num_layers, room):
    case = steps(num_layers, 2), [1] * num_layers, room
    assert replay(least_recently(*case), *case) == replay(plan_evictions(*case), *case)


def test_one_step_copies_twice_what_does_not_stay():
    """At the turn at most 22 of 26 bytes are there, and the last layer is among them."""
    uses, layer_bytes, capacity = CACHES["one step, 6 unequal layers"]
    stays = max(
        sum(layer_bytes[one] for one in kept)
        for size in range(7)
        for kept in combinations(range(6), size)
        if 5 in kept and sum(layer_bytes[one] for one in kept) <= capacity
    )
    copied = replay(plan_evictions(uses, layer_bytes, capacity), uses, layer_bytes, capacity)
    assert copied == 2 * sum(layer_bytes) - stays


def test_prefetching_one_layer_copies_one_layer_more_than_a_cache_of_two():
    case = steps(6), [1] * 6, 2
    assert replay(plan_evictions(*case), *case) == sum(transfers(6, 1)) - 1


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ([[], [0]], "2 lists for 4 uses"),
        ([[], [0], [], [2]], "before use 3 layer 2 should leave, but is not there"),
        ([[], [], [], []], "at use 1 layers [0, 1] are there, 3 bytes; 2 fit"),
        ([[], 0, 1, 0], "a list of layers for each use"),
    ],
)
def test_a_plan_that_cannot_be_followed_is_refused(plan, says):
    case = [0, 1, 1, 0], [1, 2], 2
    outcome = engine.attempt(lambda *arguments: plan, [case], None, PLAN.observe)
    assert outcome.kind == "refused"
    assert says in outcome.detail
