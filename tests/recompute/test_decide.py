"""Decisions: on a profile that can be worked out on paper, and on real models."""

from itertools import product

import pytest
import torch

from pedagogy.measure import memory_meter
from pedagogy.recompute import (
    Op,
    Profile,
    attention_scores,
    by_operation,
    by_policy,
    by_rule,
    predict,
    recompute_seconds,
    swap_or_recompute,
)
from pedagogy.recompute.profile import Saved
from pedagogy.workloads import GPT, text_batch
from tests.recompute.running import (
    AtOnce,
    always,
    convnet,
    deep_convnet,
    executed,
    mlp,
    profiled,
    tied_gpt,
    untied_gpt_with_dropout,
)

aten = torch.ops.aten


def chain(seconds=(1.0, 1.0, 1.0, 1.0), nbytes=(100, 100, 100, 100), funcs=None):
    """A net of four layers on paper: each reads and makes one tensor, and saves what it makes.

    Backward takes a second for each layer. All kept, 100, 200, 300, 400 bytes are live.
    """
    n = len(seconds)
    ops = []
    for i in range(n):
        op = Op(i, (funcs or [aten.exp.default] * n)[i], f"layer{i}", seconds[i])
        op.inputs, op.nbytes = ((i - 1, 0),) if i else (), {0: nbytes[i]}
        ops.append(op)
    live = [sum(nbytes[: i + 1]) for i in range(n)]
    asks = [(i, 0) for i in reversed(range(n))]
    saved = {(i, 0): Saved(nbytes[i], min(i + 2, n), (n - 1 - i,)) for i in range(n)}
    backward = [(0.0, (live[-1],))] + [(1.0, (live[i], live[i] - nbytes[i])) for i, _ in asks]
    return Profile(tuple(ops), tuple(live), saved, tuple(asks), tuple(backward))


def test_the_paper_net():
    assert chain().peak == 400
    assert chain().seconds == 8.0
    assert chain().forward_seconds == 4.0


def test_what_is_away_the_longest_is_swapped_first_and_costs_nothing():
    """100 bytes a second: A0 leaves from 1 to 2, is asked for at 7, and called at 6 (ask 2)."""
    decision = swap_or_recompute(chain(), 300, 100.0)
    assert decision.actions == {(0, 0): "swap"}
    assert decision.calls == {2: ((0, 0),)}
    assert decision.prediction.peak == 300
    assert decision.prediction.seconds == 8.0
    assert decision.prediction.live == (
        100,
        200,
        200,
        300,
        300,
        300,
        200,
        200,
        100,
        200,
        100,
        100,
        0,
    )


def test_then_the_next_while_the_link_has_time():
    """A1 leaves from 2 to 3, is asked for at 6, and called at 5 (ask 1)."""
    decision = swap_or_recompute(chain(), 200, 100.0)
    assert decision.actions == {(0, 0): "swap", (1, 0): "swap"}
    assert decision.calls == {1: ((1, 0),), 2: ((0, 0),)}
    assert (decision.prediction.peak, decision.prediction.stall) == (200, 0.0)
    copies = [event for event in decision.prediction.events if event.rank]
    assert [(event.kind, event.start, event.end) for event in copies] == [
        ("to_host", 1.0, 2.0),
        ("to_host", 2.0, 3.0),
        ("to_device", 5.0, 6.0),
        ("to_device", 6.0, 7.0),
    ]


def test_over_a_slow_link_the_cheapest_that_helps_runs_again():
    """Without A0 or A1 the budget is kept; A2 and A3 are needed when the peak is."""
    for cheap in (0, 1):
        seconds = [1.0] * 4
        seconds[cheap] = 0.5
        decision = swap_or_recompute(chain(seconds), 300, 1.0)
        assert decision.actions == {(cheap, 0): "recompute"}
        assert decision.calls == {}
        assert decision.prediction.seconds == 7.5 + 0.5
        assert (decision.prediction.peak, decision.prediction.extra_forwards) == (300, 1)


def test_bytes_count_as_seconds_do():
    """A1 takes three seconds and saves enough; A0 takes one, and saves a tenth."""
    slow = chain((1.0, 3.0, 1.0, 1.0), (10, 100, 100, 100))
    assert swap_or_recompute(slow, 210, 1.0).actions == {(1, 0): "recompute"}
    assert swap_or_recompute(slow, 300, 1.0).actions == {(0, 0): "recompute"}


def test_a_fast_link_leads_to_swaps_and_a_slow_one_to_recomputation():
    for make in (deep_convnet, tied_gpt):
        found = profiled(make)
        budget = found.peak * 19 // 20
        fast, slow = (swap_or_recompute(found, budget, speed) for speed in (1e15, 1.0))
        assert set(fast.actions.values()) == {"swap"}
        assert fast.prediction.seconds == pytest.approx(found.seconds)
        assert set(slow.actions.values()) == {"recompute"}
        assert slow.prediction.stall == 0.0


def named(decision):
    return {key[0]: action for key, action in decision.actions.items()}


def test_what_has_free_time_but_lowers_nothing_stays():
    """Two seconds each way: A1 could leave, but where it is too much, A1 is back again."""
    found = chain((1.0, 2.0, 1.0, 3.0), (300, 300, 300, 100))
    decision = swap_or_recompute(found, 800, 200.0)
    also = predict(found, {**decision.actions, (1, 0): "swap"}, 200.0)
    assert also.seconds == decision.prediction.seconds  # it would cost nothing
    assert (named(decision), decision.prediction.peak) == ({0: "recompute"}, 700)


def test_an_early_choice_is_taken_back_where_another_action_is_better():
    """A0 can leave for nothing; in the end it is made again, as the link has more to carry."""
    found = chain((1.0, 1.0, 0.5, 3.0), (200, 300, 200, 300))
    assert named(swap_or_recompute(found, 800, 100.0)) == {0: "swap"}
    decision = swap_or_recompute(found, 600, 100.0)
    assert named(decision) == {0: "recompute", 1: "swap", 2: "recompute"}
    assert decision.prediction.peak == 600


def test_where_cheap_steps_lead_nowhere_bytes_alone_decide():
    """A2 is the cheapest, but makes the peak of its own remaking; A0 and A1 together do not."""
    found = chain((3.0, 3.0, 1.0, 2.0), (300,) * 4)
    decision = swap_or_recompute(found, 720, 1.0)
    assert named(decision) == {0: "recompute", 1: "recompute"}
    assert (decision.prediction.peak, decision.prediction.seconds) == (600, 13.0 + 6.0)


@pytest.mark.parametrize("speed", [1.0, 20.0, 50.0, 100.0, 1e9])
@pytest.mark.parametrize("budget", [200, 300, 399])
def test_on_paper_no_other_choice_is_better(speed, budget):
    """By trying all 81."""
    found = chain((1.0, 0.5, 2.0, 1.0))
    decision = swap_or_recompute(found, budget, speed)
    assert decision.prediction.peak <= budget
    for actions in product(("keep", "recompute", "swap"), repeat=4):
        chosen = dict(zip(sorted(found.saved), actions, strict=True))
        other = predict(found, chosen, speed)
        assert other.peak > budget or other.seconds >= decision.prediction.seconds - 1e-9


def test_a_budget_above_the_peak_changes_nothing():
    for budget in (400, 10**9):
        decision = swap_or_recompute(chain(), budget, 1.0)
        assert (decision.actions, decision.calls) == ({}, {})
        assert decision.prediction == predict(chain(), {})


def test_it_is_pure_and_deterministic():
    found = profiled(deep_convnet)
    before = repr(found._replace(operations=())), [vars(op).copy() for op in found.operations]
    one, two = (swap_or_recompute(found, found.peak * 3 // 4, 1e9) for _ in range(2))
    assert one == two
    assert before == (repr(found._replace(operations=())), [vars(op) for op in found.operations])


def test_what_cannot_be_is_refused_with_numbers():
    with pytest.raises(ValueError, match="a link of 0 bytes per second"):
        swap_or_recompute(chain(), 300, 0)
    with pytest.raises(
        ValueError, match="of 199 bytes is not reached: the least peak found is 200"
    ):
        swap_or_recompute(chain(), 199, 100.0)
    for refused in (lambda: by_operation(chain(), 0), lambda: predict(chain(), {}, -1.0)):
        with pytest.raises(ValueError, match="bytes per second: must be positive"):
            refused()
    with pytest.raises(ValueError, match=r"actions \['drop'\]: choose among keep, recompute"):
        predict(chain(), {(0, 0): "drop"})
    with pytest.raises(ValueError, match="'fast': choose one of speed, memory, cost"):
        by_policy(chain(), "fast")


@pytest.mark.parametrize("make", [deep_convnet, tied_gpt])
@pytest.mark.parametrize("speed", [float("inf"), 1.0])
def test_the_budget_is_kept_when_it_runs(make, speed):
    found = profiled(make)
    budget = found.peak * 19 // 20
    decision = swap_or_recompute(found, budget, speed)
    meter, tape = executed(make, decision.rule, AtOnce(), decision.calls)
    assert meter.peak == decision.prediction.peak <= budget
    assert tape.extra_forwards == decision.prediction.extra_forwards
    assert decision.prediction.extra_seconds > 0 or speed > 1


def test_how_long_it_takes_to_make_one_tensor():
    assert recompute_seconds(chain((1.0, 0.5, 2.0, 1.0)), (1, 0)) == 0.5
    found = profiled(convnet)
    relu = next(key for key in found.saved if found.operations[key[0]].name == "relu")
    bn = found.operations[relu[0]].inputs[0][0]
    ops = {relu[0], bn}  # BatchNorm's output is not saved, the convolution's is
    assert recompute_seconds(found, relu) == pytest.approx(
        sum(found.operations[number].seconds for number in ops)
    )


def test_by_operation_swaps_what_products_read_and_recomputes_the_cheap_rest():
    found = profiled(mlp)
    decision = by_operation(found, 1e9)
    assert decision.actions == {(1, 0): "swap", (3, 0): "swap"}
    found = profiled(deep_convnet)
    actions = by_operation(found, 1e9).actions
    named = {(found.operations[key[0]].name, action) for key, action in actions.items()}
    assert ("relu", "swap") in named
    assert ("native_batch_norm", "recompute") in named
    assert "convolution" not in {name for name, action in named if action == "recompute"}


def test_the_policies_never_run_a_product_or_a_convolution_again():
    for make in (convnet, deep_convnet, tied_gpt, untied_gpt_with_dropout, mlp):
        decision = by_policy(profiled(make), "memory")
        _, tape = executed(make, decision.rule)
        ran = {op.name for op in tape.ops if op.runs}
        assert not ran & {"convolution", "addmm", "mm", "bmm", "embedding"}


def test_cost_lies_between_speed_and_memory():
    for make in (convnet, deep_convnet, tied_gpt):
        found = profiled(make)
        speed, memory, cost = (
            by_policy(found, policy).prediction for policy in ("speed", "memory", "cost")
        )
        assert memory.peak <= cost.peak <= speed.peak
        assert speed.extra_forwards <= cost.extra_forwards <= memory.extra_forwards
        assert by_policy(found, "cost", budget=10**12).prediction.extra_forwards == (
            speed.extra_forwards
        )


def selective(heads, sequence, batch, dropout):
    """Bytes after forward that the rule saves, and what ran again, by name."""
    left = []
    for rule in (always("keep"), attention_scores):
        torch.manual_seed(0)
        model = GPT(layers=2, hidden=16, heads=heads, sequence=sequence, dropout=dropout)
        with memory_meter(model) as meter:
            with by_rule(rule) as tape:
                loss = model.loss(*text_batch(batch, sequence))
            left.append(meter.now)
        loss.backward()
    return left[0] - left[1], sorted(op.name for op in tape.ops if op.runs)


def test_selective_recomputation_saves_the_square_of_each_layer():
    heads, sequence, batch = 2, 24, 3
    saved, ran = selective(heads, sequence, batch, 0.0)
    assert saved == 2 * 4 * heads * sequence**2 * batch
    assert ran == sorted(["bmm", "masked_fill", "softmax"] * 2)
    saved, ran = selective(heads, sequence, batch, 0.1)
    assert saved == 2 * 2 * 4 * heads * sequence**2 * batch  # before and after dropout
    assert ran == sorted(["bmm", "masked_fill", "softmax", "mul"] * 2)


def test_a_net_that_saves_nothing_has_nothing_to_decide():
    found = chain()._replace(saved={}, asked=(), backward=((1.0, (100,)),))
    assert swap_or_recompute(found, 500, 1.0).actions == {}
    with pytest.raises(ValueError, match="no other tensor helps"):
        swap_or_recompute(found, 99, 1.0)
