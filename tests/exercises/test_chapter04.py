"""Chapter 04: the references are what one process and other ways compute; keys are the cases'."""

from __future__ import annotations

import sys
from itertools import combinations

import cloudpickle
import torch

from pedagogy.collectives import all_to_all
from pedagogy.exercises import engine, prediction
from pedagogy.exercises.chapter04 import PLACES, place_in_buffers
from pedagogy.exercises.chapter04_balance import BALANCE, balance_loss
from pedagogy.exercises.chapter04_load import smooth_load
from pedagogy.exercises.chapter04_mixture import CHOICES, MIXTURE, draw_experts, inputs_of
from pedagogy.exercises.chapter04_predictions import CHOICES as CHOSEN
from pedagogy.exercises.chapter04_predictions import DROPPED, MICRO_BATCHES
from pedagogy.exercises.chapter04_ranks import COUNTS, EXPERTS, HIDDEN, ON_RANKS, factors_of
from pedagogy.exercises.chapter04_ranks import inputs_of as inputs_of_rank
from pedagogy.exercises.chapter04_traffic import BYTES, EXPERT_GRADIENT, SWITCH_C
from pedagogy.moe import combine, dispatch, expected_load, keep_within, places_of
from pedagogy.moe import run_experts as run_each
from pedagogy.moe.routing import Routing

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def values_of(exercise):
    """What the reference returns: [rank][case]."""
    verdict = engine.judge(exercise, exercise.reference)
    assert verdict.kind == "correct"
    return verdict.outcome.value


def test_C38_five_tokens_to_one_expert_keep_the_first_two():
    places, kept = place_in_buffers(torch.zeros(5, dtype=torch.int64), 4, 2)
    assert places.tolist() == [0, 1, 2, 3, 4]
    assert kept.tolist() == [True, True, False, False, False]
    assert prediction.judge(DROPPED, 3).startswith("correct")
    assert "that are kept" in prediction.judge(DROPPED, 2)
    assert "rounded up" in prediction.judge(DROPPED, 4)


def test_places_in_buffers_are_the_package_s():
    for experts, num_experts, capacity in PLACES.cases:
        places, kept = place_in_buffers(experts, num_experts, capacity)
        of_package = places_of(experts[:, None], num_experts)[:, 0]
        assert torch.equal(places, of_package)
        assert torch.equal(kept, keep_within(of_package, capacity))


def test_C44_the_loss_follows_the_routing():
    even, skewed = torch.full((4, 4), 0.25), torch.tensor([[0.7, 0.1, 0.1, 0.1]]).repeat(4, 1)
    torch.testing.assert_close(balance_loss(even, torch.arange(4)), torch.tensor(1.0))
    torch.testing.assert_close(balance_loss(skewed, torch.zeros(4).long()), torch.tensor(2.8))


def test_the_gradient_of_the_loss_is_each_expert_s_share():
    for (probabilities, experts), answer in zip(BALANCE.cases, values_of(BALANCE)[0], strict=True):
        tokens, num_experts = probabilities.shape
        shares = torch.tensor([(experts == e).sum() / tokens for e in range(num_experts)])
        want = (num_experts / tokens * shares).expand(tokens, -1)
        torch.testing.assert_close(answer["the gradient of probabilities"], want)


def test_a_load_is_the_package_s():
    draw = torch.Generator().manual_seed(0)
    logits, noise, std = torch.randn(3, 5, 6, generator=draw)
    std = std.abs() + 0.1
    for k in (1, 2, 4):
        want = expected_load(logits, logits + noise * std, std, k)
        torch.testing.assert_close(smooth_load(logits, logits + noise * std, std, k), want)


def test_a_load_is_how_often_an_expert_is_chosen_when_its_noise_is_drawn_again():
    draw = torch.Generator().manual_seed(0)
    logits, noise = torch.randn(2, 1, 5, generator=draw)
    std, drawn = torch.full((1, 5), 0.8), torch.randn(40_000, generator=draw)
    chances = smooth_load(logits, logits + noise * std, std, 2)
    for e in range(5):
        noisy = (logits + noise * std).repeat(len(drawn), 1)
        noisy[:, e] = logits[0, e] + 0.8 * drawn
        often = (noisy.topk(2).indices == e).any(1).float().mean()
        torch.testing.assert_close(chances[e], often, atol=0.01, rtol=0)


def test_a_mixture_is_the_weighted_sum_of_all_experts_with_zeros_for_the_others():
    for label, answer in zip(CHOICES, values_of(MIXTURE)[0], strict=True):
        x, weights, experts_of, experts = inputs_of(label)
        gates = torch.zeros(len(x), len(experts)).scatter(1, experts_of, weights)
        y = torch.einsum("te,teh->th", gates, torch.stack([expert(x) for expert in experts], 1))
        (y * torch.arange(1.0, y.numel() + 1).view(y.shape)).sum().backward()
        torch.testing.assert_close(answer["the output"], y)
        torch.testing.assert_close(answer["the gradient of x"], x.grad)
        torch.testing.assert_close(answer["the gradient of weights"], weights.grad)
        counts = [int((experts_of == e).sum()) for e in range(len(experts))]
        assert 0 in counts
        assert answer["the rows that each expert was given"] == counts


def of_the_package(x, weights, experts_of, experts):
    kept = torch.ones_like(experts_of, dtype=torch.bool)
    places, gates = places_of(experts_of, len(experts)), torch.zeros(len(x), len(experts))
    sent = dispatch(x, Routing(experts_of, weights, places, kept, gates))
    return combine(run_each(sent.rows, sent.counts, experts), sent, len(x))


def test_the_package_s_mixture_is_accepted():
    assert engine.explain(MIXTURE, of_the_package).startswith(engine.CORRECT)


def test_experts_on_ranks_are_the_experts_of_one_process():
    found = values_of(ON_RANKS)
    for case, label in enumerate(COUNTS):
        experts = draw_experts(EXPERTS, HIDDEN)
        for rank, answers in enumerate(found):
            rows, counts, _ = inputs_of_rank(label, rank)
            blocks = zip(experts, rows.split(counts.tolist()), strict=True)
            y = torch.cat([expert(block) for expert, block in blocks])
            (y * factors_of(y, rank)).sum().backward()
            torch.testing.assert_close(answers[case]["the outputs"], y)
            torch.testing.assert_close(answers[case]["the gradient of rows"], rows.grad)
        gradients = [
            gradient
            for answers in found
            for gradient in answers[case]["the gradients of the experts here"]
        ]
        for expert, gradient in zip(experts, gradients, strict=True):
            torch.testing.assert_close(gradient, expert.weight.grad)


def sorted_here(group, rows, counts, experts):
    """What arrives is sorted by expert, and the outputs are put back in the order of arrival."""
    first, each = group.rank * len(experts), len(experts)
    arriving = torch.stack(group.all_gather(counts))[:, first : first + each]
    parts = all_to_all(group, list(rows.split(counts.view(-1, each).sum(1).tolist())))
    arrived = torch.cat(parts)
    expert_of = torch.cat([torch.arange(each).repeat_interleave(n) for n in arriving])
    outputs = torch.zeros_like(arrived) + 0 * arrived
    for e, expert in enumerate(experts):
        mine = (expert_of == e).nonzero()[:, 0]
        outputs = outputs.index_add(0, mine, expert(arrived[mine]))
    return torch.cat(all_to_all(group, list(outputs.split([len(part) for part in parts]))))


def test_another_way_to_experts_on_ranks_is_accepted():
    assert engine.explain(ON_RANKS, sorted_here).startswith(engine.CORRECT)


def test_C43_the_mean_of_two_collapsed_micro_batches_is_2_and_together_they_are_1():
    assert prediction.judge(MICRO_BATCHES, 2).startswith("correct")
    assert "loss of the whole batch" in prediction.judge(MICRO_BATCHES, 1)
    one_hot = torch.eye(2).repeat_interleave(3, 0)
    assert balance_loss(one_hot, one_hot.argmax(1)) == 1


def test_a_list_of_tokens_is_never_told_how_long_the_right_one_is():
    assert prediction.judge(CHOSEN, [1, 2, 3]).startswith("correct")
    assert "token 1 finds no room there either" in prediction.judge(CHOSEN, [2, 3])
    assert "token 3 finds no room there either" in prediction.judge(CHOSEN, [1, 2])
    lists = [list(some) for n in range(6) for some in combinations(range(5), n)]
    assert not any("a list of" in prediction.judge(CHOSEN, some) for some in lists)


def test_the_journeys_of_a_token_s_choices_are_counted():
    assert prediction.judge(BYTES, 4 * 2 * 7 / 8 * 4096).startswith("correct")
    assert "8 journeys for each choice" in prediction.judge(BYTES, 8 * 2 * 4096)
    assert "one journey of one choice" in prediction.judge(BYTES, 7 / 8 * 4096)


def test_C47_the_expert_s_gradient_is_2_and_not_4():
    assert prediction.judge(EXPERT_GRADIENT, 2).startswith("correct")
    assert "divide by 2" in prediction.judge(EXPERT_GRADIENT, 4)


def test_a_token_meets_a_two_thousandth_of_a_layer_of_switch_c():
    assert prediction.judge(SWITCH_C, 2 * 2080 * 6144 / 1e6).startswith("correct")
    assert "all experts of the layer" in prediction.judge(SWITCH_C, 2 * 2048 * 2080 * 6144 / 1e6)
