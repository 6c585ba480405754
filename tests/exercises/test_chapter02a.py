"""Chapter 02a: what `check` says to natural answers, right and wrong."""

from __future__ import annotations

import sys
from functools import cache

import cloudpickle
import pytest
import torch
from torch import nn
from torch.nn import functional

from pedagogy.exercises import engine
from pedagogy.exercises.chapter02a import ORDER
from pedagogy.exercises.chapter02a_ranks import STEP, batch_of, gpipe_step, stages_of_three
from pedagogy.exercises.chapter02a_split import SPLIT
from pedagogy.exercises.chapter02a_times import TIMES, start_times
from pedagogy.pipeline import gpipe, interleaved, one_f_one_b, simulate, zero_bubble_h1
from pedagogy.ranks import launch

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def said(exercise, function) -> str:
    return engine.explain(exercise, function)


def correct(exercise, function) -> bool:
    return said(exercise, function).startswith(engine.CORRECT)


# --- the order of 1F1B ----------------------------------------------------------------------------


def test_the_package_s_own_order_is_accepted():
    assert correct(ORDER, one_f_one_b)


def test_gpipe_is_told_that_it_holds_too_much():
    text = said(ORDER, gpipe)
    assert "This is GPipe" in text
    assert "rank 0 holds 8 micro-batches at once, and 4 are enough" in text


def test_an_order_that_goes_back_in_reverse_costs_memory_or_time():
    def last_first(p, m):
        return [[*actions[:m], *reversed(actions[m:])] for actions in gpipe(p, m)]

    assert "holds 8 micro-batches" in said(ORDER, last_first)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda p, m: "F0 B0", "a list is wanted for each of the 4 ranks, not 'F0 B0'"),
        (lambda p, m: one_f_one_b(p, m)[:-1], "for each of the 4 ranks, not 3 of them"),
        (lambda p, m: [["F0"]] * p, "rank 0 has 'F0'; an action is (kind, stage, micro-batch)"),
        (zero_bubble_h1, 'with the kind "F" or "B"'),
        (lambda p, m: one_f_one_b(p, m)[::-1], "F0@3 stands on rank 0, which holds stage 0"),
        (lambda p, m: one_f_one_b(p, m - 1), "there are 4 stages and 7 micro-batches"),
        (lambda p, m: [[*a, a[-1]] for a in one_f_one_b(p, m)], "stands in the schedule twice"),
        (lambda p, m: [[("F", s, 0.5)] for s in range(p)], "count from 0"),
    ],
)
def test_an_order_that_cannot_run_is_refused_with_the_rule_that_it_breaks(answer, reason):
    assert reason in said(ORDER, answer)


def test_a_dead_lock_is_refused_with_its_circle():
    def last_warms_up_first(p, m):
        orders = one_f_one_b(p, m)
        orders[0] = [action for k in range(m) for action in (("F", 0, k), ("B", 0, k))]
        return orders

    text = said(ORDER, last_warms_up_first)
    assert "these ranks wait for each other in a circle: rank 0 stands at B0@0" in text


# --- the simulator --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schedule", [gpipe(4, 3), one_f_one_b(3, 7), interleaved(2, 6, 3), one_f_one_b(1, 2)]
)
def test_the_reference_starts_every_action_as_the_simulator_does(schedule):
    chunks = len({stage for _, stage, _ in schedule[0]})
    wanted = simulate(schedule, forward=3 * chunks, backward=5 * chunks)
    assert start_times(schedule, 3, 5) == dict(wanted.start)


def test_a_simulator_by_recursion_is_accepted():
    def by_recursion(schedule, forward, backward):
        took, before = {"F": forward, "B": backward}, {}
        for actions in schedule:
            before |= dict(zip(actions[1:], actions, strict=False))
        everything = [action for actions in schedule for action in actions]
        stages = {stage for _, stage, _ in everything}

        @cache
        def start(action):
            kind, s, k = action
            other = (kind, s + (1 if kind == "B" else -1), k)
            needs = [before[action]] if action in before else []
            needs += [other] if other[1] in stages else []
            return max((start(need) + took[need[0]] for need in needs), default=0)

        return {action: start(action) for action in everything}

    assert correct(TIMES, by_recursion)


def test_the_last_stage_is_not_the_number_of_ranks_minus_one():
    def by_rounds(schedule, forward, backward):
        start, end, free, last = {}, {}, [0] * len(schedule), len(schedule) - 1
        todo = [list(actions) for actions in schedule]
        while any(todo):
            for rank, actions in enumerate(todo):
                while actions:
                    kind, stage, k = actions[0]
                    need = None
                    if kind == "F" and stage > 0:
                        need = ("F", stage - 1, k)
                    if kind == "B" and stage < last:
                        need = ("B", stage + 1, k)
                    if need and need not in end:
                        break
                    start[actions[0]] = max(free[rank], end.get(need, 0))
                    end[actions[0]] = start[actions[0]] + (forward if kind == "F" else backward)
                    free[rank] = end[actions.pop(0)]
        return start

    assert "not the number of ranks minus 1" in said(TIMES, by_rounds)


# --- GPipe on ranks -------------------------------------------------------------------------------


def _gradients(group, sizes):
    inputs, targets = batch_of(sizes)
    stage = stages_of_three()[group.rank]
    gpipe_step(group, stage, inputs, targets, functional.mse_loss, len(sizes))
    return [parameter.grad for parameter in stage.parameters()]


def test_the_reference_step_has_the_gradients_of_one_process():
    inputs, targets = batch_of([3, 3, 1])
    alone = nn.Sequential(*stages_of_three())
    functional.mse_loss(alone(torch.cat(inputs)), torch.cat(targets)).backward()
    found = [gradient for stage in launch(_gradients, 3, [3, 3, 1]) for gradient in stage]
    for parameter, gradient in zip(alone.parameters(), found, strict=True):
        torch.testing.assert_close(gradient, parameter.grad)


def test_backwards_in_reverse_order_are_gpipe_too():
    def reverse(group, stage, microbatches, targets, loss, m):
        held = []
        last = group.rank == group.size - 1
        for k in range(m):
            x = microbatches[k] if group.rank == 0 else group.recv(group.rank - 1)
            y = stage(x.requires_grad_())
            if last:
                y = loss(y, targets[k]) * len(targets[k]) / sum(len(one) for one in targets)
            else:
                group.send(y, group.rank + 1)
            held.append((x, y))
        for x, y in reversed(held):
            y.backward(None if last else group.recv(group.rank + 1))
            if group.rank:
                group.send(x.grad, group.rank - 1)

    assert correct(STEP, reverse)


def test_a_rank_that_waits_for_its_gradient_too_early_is_a_dead_lock():
    def waits(group, stage, microbatches, targets, loss, m):
        for k in range(m):
            x = microbatches[k] if group.rank == 0 else group.recv(group.rank - 1)
            if group.rank < group.size - 1:
                gradient = group.recv(group.rank + 1)  # before anything was sent
                group.send(stage(x), group.rank + 1)
                stage(x).backward(gradient)

    text = said(STEP, waits)
    assert "A dead-lock" in text
    assert "rank 0: recv (rank 1)" in text


# --- two halves of a backward ---------------------------------------------------------------------


def test_einsum_is_accepted():
    def with_einsum(x, weight, grad):
        return torch.einsum("...o,oi->...i", grad, weight), lambda: torch.einsum(
            "...o,...i->oi", grad, x
        )

    assert correct(SPLIT, with_einsum)


def _backward_of_both(x, weight, grad):
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    functional.linear(x, weight).backward(grad)
    return x.grad, lambda: weight.grad


def _one_after_the_other(x, weight, grad):
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    y = functional.linear(x, weight)
    (grad_x,) = torch.autograd.grad(y, x, grad, retain_graph=True)
    return grad_x, lambda: torch.autograd.grad(y, weight, grad)[0]


@pytest.mark.parametrize("with_autograd", [_backward_of_both, _one_after_the_other])
def test_autograd_is_told_that_it_needs_the_forward_again(with_autograd):
    text = said(SPLIT, with_autograd)
    assert "Autograd needs the forward again" in text
    assert "more than two matrix products run in all" in text


@pytest.mark.parametrize(
    ("weight_half", "advice"),
    [
        (lambda x, g: g.T @ x, "flatten the leading ones of both"),
        (lambda x, g: g.mT @ x, "a gradient for each of them"),
        (lambda x, g: (g.mT @ x).mean(0) if x.dim() > 2 else g.T @ x, "mean over the sequences"),
        (lambda x, g: torch.einsum("...o,...i->oi", g, x) / len(x), "this product is a sum"),
    ],
)
def test_a_weight_half_that_minds_the_leading_dimensions_wrongly_is_explained(weight_half, advice):
    assert advice in said(SPLIT, lambda x, w, grad: (grad @ w, lambda: weight_half(x, grad)))


def test_one_tensor_instead_of_two_things_is_refused():
    assert "Two things are wanted" in said(SPLIT, lambda x, weight, grad: grad @ weight)
