"""The evidence of chapter 08: what is called equal is, and what is counted is what there is."""

import time

import pytest
import torch
from torch import nn

from pedagogy.measure import memory_meter
from pedagogy.ranks import open_link
from pedagogy.recompute import by_policy, by_rule, checkpoint_sequential, profile, swap_or_recompute
from pedagogy.recompute.evidence import (
    SLOW_MOTION,
    DeepConvNet,
    Paced,
    after_forward,
    checkpoint_each,
    executed_forwards,
    fastest_seconds,
    gpt_loss,
    gpu_ways,
    gradient,
    recomputed,
    run,
    swapped,
)
from pedagogy.workloads import GPT, ConvNet, digits_batch, text_batch

SMALL = {"layers": 2, "hidden": 16, "heads": 2, "sequence": 16}
ELEMENT = 16 * 8 * 8 * 8 * 4  # bytes of an activation of 16 digits in 8 channels


def net_and_digits():
    """A small ConvNet, always the same."""
    torch.manual_seed(0)
    return ConvNet(8), digits_batch(16)


def test_a_plain_run_is_the_plain_step():
    net, digits = net_and_digits()
    done = run(net, digits)
    net.zero_grad()
    with memory_meter(net) as meter:
        net.loss(*digits).backward()
    assert torch.equal(done.gradient, torch.cat([p.grad.flatten() for p in net.parameters()]))
    assert (done.peak, done.extra_forwards, len(done.link)) == (meter.peak, 0, 0)
    start, turn, end = done.marks
    assert start < turn < end
    assert done.seconds == end - start


def test_a_decided_run_does_what_was_decided_with_and_without_a_meter():
    net, digits = net_and_digits()
    plain, decision = run(net, digits), by_policy(profile(net, digits), "memory")
    for metered in (True, False):
        done = run(net, digits, decision, metered=metered)
        assert torch.equal(done.gradient, plain.gradient)
        assert done.extra_forwards == decision.prediction.extra_forwards > 0
        assert done.peak == (decision.prediction.peak if metered else 0)


def test_swapped_sends_all_that_is_large_and_nothing_runs_again():
    net, digits = net_and_digits()
    watched = profile(net, digits)
    decision = swapped(watched, link_bandwidth=1e9)
    assert set(decision.actions.values()) == {"swap"}
    done = run(net, digits, decision, link_bandwidth=1e9)
    assert torch.equal(done.gradient, run(net, digits).gradient)
    sent = sum(event.nbytes for event in done.link if event.kind == "to_host")
    assert sent == sum(watched.saved[key].nbytes for key in decision.actions)
    assert done.extra_forwards == 0
    largest = max(saved.nbytes for saved in watched.saved.values())
    left = [saved.nbytes for key, saved in watched.saved.items() if key not in decision.actions]
    assert max(left) < largest / 64


def test_recomputed_keeps_a_budget_without_the_link():
    torch.manual_seed(0)
    tower, digits = DeepConvNet(layers=6), digits_batch(16)
    watched = profile(tower, digits)
    budget = watched.peak * 6 // 10
    decision = recomputed(watched, budget)
    assert "swap" not in decision.actions.values()
    done = run(tower, digits, decision)
    assert done.peak == decision.prediction.peak <= budget < watched.peak
    assert torch.equal(done.gradient, run(tower, digits).gradient)


def test_under_the_chapters_budget_both_are_faster_than_recomputing_and_swapping_does_not_fit():
    torch.manual_seed(0)
    tower, digits = DeepConvNet(layers=10), digits_batch(64)
    with Paced(SLOW_MOTION):  # a hiccup of the machine would make the link look fast
        watched = min((profile(tower, digits) for _ in range(3)), key=lambda one: one.seconds)
    budget, speed = int(0.4 * watched.peak), 8.2e6
    alone, both = recomputed(watched, budget), swap_or_recompute(watched, budget, speed)
    assert max(alone.prediction.peak, both.prediction.peak) <= budget
    assert both.prediction.seconds < alone.prediction.seconds
    assert {"swap", "recompute"} <= set(both.actions.values())
    assert swapped(watched, speed).prediction.peak > budget


def test_a_paced_operation_lasts_as_long_as_it_is_told_to_also_in_backward():
    x = torch.ones(4, requires_grad=True)
    with Paced({"relu": 0.02, "threshold_backward": 0.03}):
        clock = [time.perf_counter()]
        y = x.relu()
        clock.append(time.perf_counter())
        y.backward(torch.ones(4))
        clock.append(time.perf_counter())
    assert clock[1] - clock[0] >= 0.02
    assert clock[2] - clock[1] >= 0.03
    assert x.grad.tolist() == [1.0] * 4


def test_the_deep_net_keeps_two_activations_a_layer():
    torch.manual_seed(0)
    images, labels = digits_batch(16)
    shallow, deep = (DeepConvNet(layers=n) for n in (2, 5))
    kept = [after_forward(lambda net=net: net.loss(images, labels)) for net in (shallow, deep)]
    statistics = 2 * 8 * 4  # of a BatchNorm: mean and 1 / deviation
    assert kept[1] - kept[0] == 3 * (2 * ELEMENT + statistics)


def test_what_a_closed_link_carried_away_is_not_counted():
    x, link = torch.ones(10, requires_grad=True), open_link()

    def forward():
        with by_rule(lambda made: "swap", link):
            return (x * 2).exp().sum()

    assert after_forward(forward, link=link) == 4


def test_after_forward_counts_what_is_held_and_not_what_is_gone():
    x = torch.ones(10, requires_grad=True)
    assert after_forward(lambda: (x * 2).exp()) == 40  # exp keeps its result, which is returned
    assert after_forward(lambda: ((x * 2).exp() + 1).grad_fn) == 40
    linear = nn.Linear(10, 10)
    assert after_forward(lambda: linear(x), linear) == 40


@pytest.mark.parametrize(
    "blocks", [checkpoint_each, lambda layers, x: checkpoint_sequential(layers, 2, x)]
)
def test_a_gpts_blocks_can_be_run_by_anyone(blocks):
    torch.manual_seed(0)
    model, texts = GPT(**SMALL, dropout=0.1), text_batch(2, 16)
    found = []
    for way in (None, blocks):
        torch.manual_seed(1)
        done = run(
            model,
            texts,
            loss=lambda way=way: gpt_loss(model, texts, way) if way else model.loss(*texts),
        )
        found.append((done.gradient, done.peak))
    (plain, most), (again, least) = found
    assert torch.equal(plain, again)
    assert least < most


def test_executed_forwards_are_counted_beyond_the_first_pass():
    assert executed_forwards(1, 1) == 0
    assert executed_forwards(4, 1) == 3 + 2 + 1  # from the input, for each layer's backward
    assert executed_forwards(10, 2) == 20  # Griewank and Walther


def test_ways_run_in_turn_and_the_fastest_time_counts():
    order, seconds = [], iter([1.0, 5.0, 9.0, 6.0, 2.0, 70.0])

    def way(name):
        order.append(name)
        return next(seconds)

    found = fastest_seconds({"a": lambda: way("a"), "b": lambda: way("b")}, repeats=3)
    assert order == list("ababab")
    assert found == {"a": 1.0, "b": 5.0}


def test_the_ways_of_the_gpu_cell_have_equal_gradients_on_a_cpu_too():
    found = gpu_ways("cpu", SMALL, batch=2)
    assert list(found) == ["all kept", "each block", "cheap", "both"]
    assert all(equal and seconds > 0 for seconds, _, equal in found.values())


def test_a_gradient_is_all_parameters_in_order():
    linear = nn.Linear(2, 1)
    linear(torch.tensor([[3.0, 4.0]])).sum().backward()
    assert gradient(linear).tolist() == [3.0, 4.0, 1.0]
