"""Chapter 04: answers to the mixtures, here and on ranks, meet what explains or accepts them."""

from __future__ import annotations

import sys

import cloudpickle
import pytest
import torch

from pedagogy.collectives import all_to_all
from pedagogy.exercises import engine
from pedagogy.exercises.chapter04_mixture import MIXTURE
from pedagogy.exercises.chapter04_ranks import ON_RANKS
from pedagogy.exercises.compare import difference

cloudpickle.register_pickle_by_value(sys.modules[__name__])


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


def repeated(x, weights, experts_of, experts):
    k, flat = experts_of.size(1), experts_of.flatten()
    order = flat.argsort()
    parts = x.repeat(k, 1)[order].split(torch.bincount(flat, minlength=len(experts)).tolist())
    outputs = torch.cat([expert(part) for expert, part in zip(experts, parts, strict=True)])
    return (outputs[order.argsort()].view(len(x), k, -1) * weights[:, :, None]).sum(1)


def weights_by_expert(x, weights, experts_of, experts):
    result = torch.zeros_like(x)
    for e, expert in enumerate(experts):
        token, _ = torch.where(experts_of == e)
        if len(token):
            result[token] += expert(x[token]) * weights[token, e].unsqueeze(1)
    return result


def frozen_experts(x, weights, experts_of, experts):
    result = torch.zeros_like(x)
    for e, expert in enumerate(experts):
        token, choice = torch.where(experts_of == e)
        with torch.no_grad():
            output = expert(x[token])
        result[token] += output * weights[token, choice].unsqueeze(1)
    return result


def token_by_token(x, weights, experts_of, experts):
    rows = []
    for t, chosen in enumerate(experts_of.tolist()):
        rows.append(sum(weights[t, j] * experts[e](x[t]) for j, e in enumerate(chosen)))
    return torch.stack(rows)


def choice_by_choice(x, weights, experts_of, experts):
    result = torch.zeros_like(x)
    for choice in range(experts_of.size(1)):
        for e, expert in enumerate(experts):
            token = (experts_of[:, choice] == e).nonzero()[:, 0]
            weighted = expert(x[token]) * weights[token, choice][:, None]
            result = result.index_add(0, token, weighted)
    return result


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (repeated, "lists all tokens k times over"),
        (weights_by_expert, "not for each expert: weights[token, choice]"),
        (frozen_experts, "The experts' outputs are detached"),
        (token_by_token, "an expert ran 3 times"),
        (choice_by_choice, "an expert ran 2 times"),
        (all_stacked, "every expert ran on every token"),
        (assigned, "assigning keeps the last"),
        (added_by_index, "index_add adds all of them"),
        (numbers_for_weights, "the weights get no gradient"),
        (summed_weights, "all of its token's weights together"),
    ],
)
def test_wrong_mixtures_are_explained(answer, says):
    assert says in engine.explain(MIXTURE, answer)


def idle_experts_skipped(x, weights, experts_of, experts):
    result = torch.zeros_like(x)
    for e in experts_of.unique().tolist():
        token, choice = torch.where(experts_of == e)
        result[token] += experts[e](x[token]) * weights[token, choice].unsqueeze(1)
    return result


def test_a_mixture_may_skip_an_expert_that_nobody_chose():
    assert engine.explain(MIXTURE, idle_experts_skipped).startswith(engine.CORRECT)


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


def source_by_source(group, rows, counts, experts):
    """An expert runs once for each source: right, in twice the calls."""
    leaving = counts.view(group.size, -1)
    arriving = all_to_all(group, list(leaving))
    parts = all_to_all(group, list(rows.split(leaving.sum(1).tolist())))
    outputs = []
    for part, lengths in zip(parts, arriving, strict=True):
        blocks = zip(experts, part.split(lengths.tolist()), strict=True)
        outputs.append(torch.cat([expert(block) for expert, block in blocks]))
    return torch.cat(all_to_all(group, outputs))


def test_an_expert_may_run_once_for_each_rank_and_counts_may_travel_by_either_all_to_all():
    assert engine.explain(ON_RANKS, source_by_source).startswith(engine.CORRECT)


def counts_by_rank(group, rows, counts, experts):
    leaving = counts.view(len(experts), group.size).T.reshape(-1)
    return source_by_source(group, rows, leaving, experts)


def divided(group, rows, counts, experts):
    return source_by_source(group, rows, counts, experts) / 2


def lists(group, rows, counts, experts):
    return all_to_all(group, counts.view(group.size, -1).tolist())


@pytest.mark.parametrize(
    ("answer", "begins"),
    [
        (counts_by_rank, "The counts are sorted by expert"),
        (divided, "The outputs are divided"),
        (lists, "all_to_all takes a list of tensors"),
    ],
)
def test_wrong_travels_do_as_the_mistake_that_explains_them(answer, begins):
    mistakes = [mistake for mistake, why in ON_RANKS.mistakes if why.startswith(begins)]
    mine = engine.judge(ON_RANKS, answer)
    known = (engine.known_verdict(ON_RANKS, mistake) for mistake in mistakes)
    assert any(
        one.kind == mine.kind
        and difference(mine.outcome.value, one.outcome.value, ON_RANKS.tolerance) is None
        for one in known
    )
