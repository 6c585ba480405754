"""Chapter 04: wrong answers as a reader would write them meet the mistake that explains them."""

from __future__ import annotations

import sys

import cloudpickle
import pytest
import torch
from torch.nn import functional

from pedagogy.collectives import all_to_all
from pedagogy.exercises import engine
from pedagogy.exercises.chapter04 import PLACES
from pedagogy.exercises.chapter04_balance import BALANCE
from pedagogy.exercises.chapter04_load import LOAD
from pedagogy.exercises.chapter04_mixture import MIXTURE
from pedagogy.exercises.chapter04_ranks import ON_RANKS
from pedagogy.exercises.compare import difference

cloudpickle.register_pickle_by_value(sys.modules[__name__])


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


@pytest.mark.parametrize(
    ("answer", "says"),
    [
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


@pytest.mark.parametrize(
    ("answer", "says"),
    [
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


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (kth_of_all, "Leave the expert out first"),
        (kth_value, "kthvalue and sort begin with the smallest"),
        (zero_in_its_place, "0 can be among the largest"),
        (counted, "changes in jumps"),
    ],
)
def test_wrong_loads_are_explained(answer, says):
    assert says in engine.explain(LOAD, answer)


def all_stacked(x, weights, experts_of, experts):
    outputs = torch.stack([expert(x) for expert in experts], 1)
    chosen = outputs.gather(1, experts_of[..., None].expand(-1, -1, x.size(1)))
    return (weights[..., None] * chosen).sum(1)


def assigned(x, weights, experts_of, experts):
    result = torch.zeros_like(x)
    for e, expert in enumerate(experts):
        mine = (experts_of == e).any(1)
        result[mine] = weights[experts_of == e][:, None] * expert(x[mine])
    return result


def added_by_index(x, weights, experts_of, experts):
    flat, result = experts_of.flatten(), torch.zeros_like(x)
    order = flat.argsort(stable=True)
    token = order // experts_of.size(1)
    counts = torch.bincount(flat, minlength=len(experts)).tolist()
    parts = zip(experts, x[token].split(counts), strict=True)
    outputs = torch.cat([expert(part) for expert, part in parts])
    result[token] += outputs * weights.flatten()[order][:, None]
    return result


def numbers_for_weights(x, weights, experts_of, experts):
    result = torch.zeros_like(x)
    for e, expert in enumerate(experts):
        token, choice = (experts_of == e).nonzero(as_tuple=True)
        result[token] += weights[token, choice].data[:, None] * expert(x[token])
    return result


def summed_weights(x, weights, experts_of, experts):
    result = torch.zeros_like(x)
    for e, expert in enumerate(experts):
        mine = (experts_of == e).any(1)
        result[mine] += weights[mine].sum(1, keepdim=True) * expert(x[mine])
    return result


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (all_stacked, "every expert ran on every token"),
        (assigned, "assigning keeps the last"),
        (added_by_index, "index_add adds all of them"),
        (numbers_for_weights, "the weights get no gradient"),
        (summed_weights, "all of its token's weights together"),
    ],
)
def test_wrong_mixtures_are_explained(answer, says):
    assert says in engine.explain(MIXTURE, answer)


def travelled(group, rows, counts, experts, leave=False, idle=True):
    """The reference in other words, with one part left out."""
    size, each = group.size, len(experts)
    leaving = counts.view(size, each)
    arriving = torch.stack(group.all_to_all(list(leaving)))
    parts = all_to_all(group, list(rows.split(leaving.sum(1).tolist())))
    if leave and arriving.sum() == 0:
        return rows
    arrived, outputs = torch.cat(parts), torch.zeros(int(arriving.sum()), rows.size(1))
    expert_of = torch.cat([torch.arange(each).repeat_interleave(n) for n in arriving])
    for e, expert in enumerate(experts):
        mine = (expert_of == e).nonzero()[:, 0]
        if len(mine) or idle:
            outputs = outputs.index_add(0, mine, expert(arrived[mine]))
    return torch.cat(all_to_all(group, list(outputs.split([len(part) for part in parts]))))


def no_second_exchange_without_rows(group, *arguments):
    return travelled(group, *arguments, leave=True)


def idle_experts_do_not_run(group, *arguments):
    return travelled(group, *arguments, idle=False)


@pytest.mark.parametrize(
    ("answer", "begins", "kind"),
    [
        (no_second_exchange_without_rows, "A rank that has no rows", "raised"),
        (idle_experts_do_not_run, "An expert without rows does not run", "hung"),
    ],
)
def test_a_rank_that_would_be_waited_for_is_explained(answer, begins, kind):
    mistake = next(one for one, why in ON_RANKS.mistakes if why.startswith(begins))
    mine, known = engine.judge(ON_RANKS, answer), engine.known_verdict(ON_RANKS, mistake)
    assert mine.kind == known.kind == kind
    assert difference(mine.outcome.value, known.outcome.value, ON_RANKS.tolerance) is None
