"""Chapter 04: wrong answers as a reader would write them meet the mistake that explains them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from pedagogy.exercises import engine
from pedagogy.exercises.chapter04 import PLACES
from pedagogy.exercises.chapter04_balance import BALANCE
from pedagogy.exercises.chapter04_load import LOAD


def counter_that_stops(experts, num_experts, capacity):
    filled, places, kept = [0] * num_experts, [], []
    for e in experts.tolist():
        places.append(filled[e])
        kept.append(filled[e] < capacity)
        filled[e] += kept[-1]
    return torch.tensor(places), torch.tensor(kept)


def compared_after_the_step(experts, num_experts, capacity):
    filled, places, kept = [0] * num_experts, [], []
    for e in experts.tolist():
        places.append(filled[e])
        filled[e] += 1
        kept.append(filled[e] < capacity)
    return torch.tensor(places), torch.tensor(kept)


def cumsum_alone(experts, num_experts, capacity):
    counts = functional.one_hot(experts, num_experts).cumsum(0)
    places = counts.gather(1, experts[:, None]).squeeze(1)
    return places, places <= capacity


def largest_of_the_counts(experts, num_experts, capacity):
    one_hot = functional.one_hot(experts, num_experts)
    places = (one_hot.cumsum(0) - one_hot).max(1).values
    return places, places < capacity


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (largest_of_the_counts, "the place in the fullest buffer so far"),
        (counter_that_stops, "A dropped token has a place too"),
        (compared_after_the_step, "compare before the counter grows"),
        (cumsum_alone, "cumsum counts the token itself"),
    ],
)
def test_wrong_places_are_explained(answer, says):
    assert says in engine.explain(PLACES, answer)


def mean_over_experts(probabilities, experts):
    num_experts = probabilities.shape[1]
    f = functional.one_hot(experts, num_experts).float().mean(0)
    return num_experts * (f * probabilities.mean(0)).mean()


def counts_for_shares(probabilities, experts):
    num_experts = probabilities.shape[1]
    counts = torch.bincount(experts, minlength=num_experts)
    return num_experts * (counts * probabilities.mean(0)).sum()


def tokens_for_experts(probabilities, experts):
    f = functional.one_hot(experts, probabilities.size(1)).float().mean(0)
    return len(probabilities) * (f * probabilities.mean(0)).sum()


def one_hot_too_short(probabilities, experts):
    f = functional.one_hot(experts).float().mean(0)
    return probabilities.shape[1] * (f * probabilities.mean(0)).sum()


def mean_of_the_chosen(probabilities, experts):
    num_experts, loss = probabilities.shape[1], 0.0
    for e in range(num_experts):
        mine = experts == e
        loss = loss + mine.float().mean() * probabilities[mine, e].mean()
    return num_experts * loss


def with_numbers(probabilities, experts):
    num_experts, total = probabilities.shape[1], 0.0
    for e in range(num_experts):
        total += (experts == e).float().mean().item() * probabilities[:, e].mean().item()
    return num_experts * total


def with_numbers_without_e(probabilities, experts):
    return with_numbers(probabilities, experts) / probabilities.shape[1]


def as_many_experts_as_were_chosen(probabilities, experts):
    num_experts = experts.max() + 1
    f = functional.one_hot(experts).float().mean(0)
    return num_experts * (f * probabilities.mean(0)[:num_experts]).sum()


def squared_cv_of_the_probabilities(probabilities, experts):
    p = probabilities.mean(0)
    return (p.std() / p.mean()) ** 2


def squared_distance_of_the_shares(probabilities, experts):
    num_experts = probabilities.size(1)
    f = torch.bincount(experts, minlength=num_experts) / len(experts)
    return (f - 1 / num_experts).pow(2).sum()


def entropy(probabilities, experts):
    p = probabilities.mean(0)
    return -(p * torch.log(p)).sum()


def sum_times_sum(probabilities, experts):
    num_experts = probabilities.size(1)
    f = functional.one_hot(experts, num_experts).float().mean(0)
    return num_experts * f.sum() * probabilities.mean(0).sum()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (as_many_experts_as_were_chosen, "E counts all experts"),
        (squared_cv_of_the_probabilities, "another measure of balance"),
        (squared_distance_of_the_shares, "another measure of balance"),
        (entropy, "another measure of balance"),
        (sum_times_sum, "each summed before they are multiplied"),
        (mean_over_experts, "a mean over the experts stands where the sum should be"),
        (counts_for_shares, "f is a share, not a count"),
        (tokens_for_experts, "Off by a factor of tokens / E"),
        (one_hot_too_short, "end at the highest expert that was chosen"),
        (mean_of_the_chosen, "experts that were chosen alone"),
        (with_numbers, "no gradient comes out"),
        (with_numbers_without_e, "E is missing"),
    ],
)
def test_wrong_losses_are_explained(answer, says):
    assert says in engine.explain(BALANCE, answer)


def kth_of_all(logits, noisy, std, k):
    return torch.special.ndtr((logits - noisy.topk(k).values[:, -1:]) / std).sum(0)


def kth_value(logits, noisy, std, k):
    loads = []
    for i in range(logits.size(1)):
        others = torch.cat([noisy[:, :i], noisy[:, i + 1 :]], 1)
        distance = (logits[:, i] - others.kthvalue(k).values) / std[:, i]
        loads.append(torch.special.ndtr(distance).sum())
    return torch.stack(loads)


def zero_in_its_place(logits, noisy, std, k):
    loads = []
    for i in range(logits.size(1)):
        others = noisy.clone()
        others[:, i] = 0
        to_beat = others.topk(k).values[:, -1]
        loads.append(torch.special.ndtr((logits[:, i] - to_beat) / std[:, i]).sum())
    return torch.stack(loads)


def counted(logits, noisy, std, k):
    return torch.bincount(noisy.topk(k).indices.flatten(), minlength=logits.size(1))


def turned_round(logits, noisy, std, k):
    best = noisy.topk(k + 1).values
    kth, next_one = best[:, -2:-1], best[:, -1:]
    chosen = noisy >= kth
    return torch.special.ndtr((logits - torch.where(chosen, kth, next_one)) / std).sum(0)


def of_the_others(logits, noisy, std, factor, rank):
    loads = []
    for i in range(logits.size(1)):
        others = torch.cat([noisy[:, :i], noisy[:, i + 1 :]], 1)
        distance = (logits[:, i] - others.topk(rank).values[:, -1]) / (factor * std)[:, i]
        loads.append(torch.special.ndtr(distance).sum())
    return torch.stack(loads)


def both_drawn_again(logits, noisy, std, k):
    return of_the_others(logits, noisy, std, 2**0.5, k)


def one_rank_too_far(logits, noisy, std, k):
    return of_the_others(logits, noisy, std, 1.0, k + 1)


def one_std_for_all(logits, noisy, std, k):
    return of_the_others(logits, noisy, std.mean().expand_as(std), 1.0, k)


def softmax_k_times(logits, noisy, std, k):
    return (k * torch.softmax(logits, 1)).sum(0)


def mean_of_samples(logits, noisy, std, k):
    counts = torch.zeros(logits.size(1))
    for _ in range(20):
        drawn = logits + std * torch.randn_like(logits)
        counts += torch.bincount(drawn.topk(k).indices.flatten(), minlength=len(counts)) / 20
    return counts


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (turned_round, "Turned round: a chosen expert"),
        (both_drawn_again, "as if the noise of both sides"),
        (one_rank_too_far, "is one too far"),
        (one_std_for_all, "each distance is divided by its own"),
        (softmax_k_times, "not the chance of being among the k"),
        (mean_of_samples, "something else at each call"),
        (kth_of_all, "Leave the expert out first"),
        (kth_value, "kthvalue and sort begin with the smallest"),
        (zero_in_its_place, "0 can be among the largest"),
        (counted, "changes in jumps"),
    ],
)
def test_wrong_loads_are_explained(answer, says):
    assert says in engine.explain(LOAD, answer)


def by_the_next_of_all(logits, noisy, std, k):
    kth, following = noisy.topk(k + 1).values[:, k - 1 :].split(1, 1)
    to_beat = torch.where(noisy >= kth, following, kth)
    return torch.special.ndtr((logits - to_beat) / std).sum(0)


def test_a_load_without_leaving_any_out_is_accepted():
    assert engine.explain(LOAD, by_the_next_of_all).startswith(engine.CORRECT)
