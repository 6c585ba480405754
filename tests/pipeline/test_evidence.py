"""What the chapter reads off a run: equality with one process, bubbles, overlaps, bytes kept."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pedagogy.measure import memory_meter
from pedagogy.pipeline import one_f_one_b, schedule_text
from pedagogy.pipeline.evidence import (
    CountingRecomputingStage,
    CountingStage,
    Evidence,
    compute_events,
    equals_one_process,
    evenly,
    evidence,
    measured_bubble,
    most_punctual,
    overlapping,
    repeated,
    token_loss,
)
from pedagogy.ranks import Event, Trace


def trained(*sizes: int) -> nn.Sequential:
    """Linear layers, each with a gradient."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(size, size) for size in sizes)).double()
    for layer in model:
        layer(torch.ones(2, layer.in_features, dtype=torch.float64)).square().mean().backward()
    return model


def test_a_rank_reports_only_the_parameters_that_have_a_gradient():
    model = trained(2, 3)
    model[1].zero_grad()
    found = evidence(model, [None, torch.tensor(2.0)], peak=3)
    assert set(found.weights) == set(found.gradients) == {"0.weight", "0.bias"}
    assert found.losses == [2.0]
    assert found.peak_in_flight == 3


def halves(model: nn.Module, losses: list) -> list[Evidence]:
    """The evidence of two ranks with a layer each; the last one has the losses."""
    whole = evidence(model, losses)
    return [
        Evidence(
            whole.losses if i else [],
            {n: g for n, g in whole.gradients.items() if n.startswith(str(i))},
            {n: w.clone() for n, w in whole.weights.items() if n.startswith(str(i))},
        )
        for i in (0, 1)
    ]


def test_two_ranks_that_hold_the_halves_equal_one_process():
    model, losses = trained(2, 3), [torch.tensor(2.0)] * 3
    assert equals_one_process(halves(model, losses), evidence(model, losses))


@pytest.mark.parametrize("wrong", ["weight", "gradient", "loss", "missing rank", "no loss"])
def test_a_run_that_differs_in_one_thing_is_not_equal(wrong):
    model, losses = trained(2, 3), [torch.tensor(2.0)] * 3
    alone, ranks = evidence(model, losses), halves(model, losses)
    if wrong == "weight":
        ranks[0].weights["0.bias"][1] += 1e-6
    elif wrong == "gradient":
        ranks[1].gradients["1.bias"] = ranks[1].gradients["1.bias"] * 2
    elif wrong == "loss":
        ranks[1].losses[1] += 1e-6
    elif wrong == "missing rank":
        del ranks[0]
    else:
        ranks[1].losses.clear()
    assert not equals_one_process(ranks, alone)


def test_a_gradient_that_is_noise_beside_the_others_may_differ():
    model, losses = trained(2, 3), [torch.tensor(2.0)]
    alone, ranks = evidence(model, losses), halves(model, losses)
    alone.gradients["0.bias"].fill_(1e-18)
    ranks[0].gradients["0.bias"] = torch.full((2,), -1e-18, dtype=torch.float64)
    assert equals_one_process(ranks, alone)


def test_layers_are_cut_as_evenly_as_they_can_be():
    assert evenly(8, 3) == [(0, 3), (3, 6), (6, 8)]


def test_a_schedule_is_repeated_rank_by_rank_with_new_micro_batches():
    twice = repeated(one_f_one_b(2, 2), 2)
    assert schedule_text(twice) == "F0 F1 B0 B1 F2 F3 B2 B3\nF0 B0 F1 B1 F2 B2 F3 B3"


def event(rank: int, kind: str, start: float, end: float) -> Event:
    return Event(rank, kind, f"{kind}0", start, end)


TWO_RANKS = [
    event(0, "F", 5, 6), event(1, "F", 6, 7), event(1, "B", 7, 9), event(0, "B", 9, 11),
]  # fmt: skip


def test_the_bubble_of_the_naive_schedule_on_two_ranks_is_a_half():
    assert measured_bubble([*TWO_RANKS, event(0, "send", 6, 30)]) == pytest.approx(0.5)
    assert compute_events(TWO_RANKS)[-1] == event(0, "B", 4, 6)


def test_spans_that_touch_do_not_overlap_and_others_do():
    assert overlapping(TWO_RANKS) == 0
    assert overlapping([*TWO_RANKS, event(0, "F", 6.5, 7.5)]) == 2
    assert overlapping([event(0, "F", 0, 2), event(0, "B", 1, 3)]) == 0  # one rank


class FakeRun(list):
    """What launch returns, as far as it is looked at: results by rank, and a trace."""


def test_the_repeat_that_idled_least_is_taken_in_units_of_the_pace():
    late = [e._replace(start=e.start + 20, end=e.end + 20) for e in TWO_RANKS]
    late[-1] = event(0, "B", 39, 41)
    run = FakeRun([[4.5, 24.0], [4.6, 24.2]])
    run.trace = Trace([*TWO_RANKS, *late])
    best = most_punctual(run, unit_seconds=2.0)
    assert [e.end for e in best] == [0.5, 1.0, 2.0, 3.0]


def test_a_stage_that_keeps_its_activations_weighs_them_until_backward():
    layer = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
    with memory_meter(layer) as meter:
        stage = CountingStage(layer, meter)
        xs = [torch.randn(2, 4).requires_grad_() for _ in range(3)]
        for k in (0, 1):
            stage.forward(k, xs[k], lambda y: y)
        stage.backward(0, torch.ones(2, 4))
        stage.forward(2, xs[2], lambda y: y)
    each = 4 * 2 * (4 + 8 + 8 + 4)  # input, before and after GELU, output
    assert stage.bytes_of == {0: each, 1: each, 2: each}
    assert stage.peak_bytes == 2 * each


def test_a_stage_that_recomputes_keeps_inputs_and_one_micro_batch_in_full():
    layer = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
    with memory_meter(layer) as meter:
        stage = CountingRecomputingStage(layer, meter)
        for k in range(3):
            stage.forward(k, torch.randn(2, 4).requires_grad_(), lambda y: y)
        assert stage.peak_bytes == 3 * 4 * 2 * 4
        stage.recompute(0)
    assert stage.peak_bytes == 4 * 2 * (2 * 4 + (4 + 8 + 8 + 4))


def test_the_loss_is_the_mean_over_all_tokens():
    logits = torch.zeros(2, 3, 5)
    assert token_loss(logits, torch.zeros(2, 3, dtype=torch.long)).item() == pytest.approx(1.609438)
