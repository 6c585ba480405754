"""Every synchronous schedule equals one process: outputs, gradients, weights, over three steps."""

import contextlib
import random
import sys

import cloudpickle
import pytest
import torch

from pedagogy.pipeline import (
    Action,
    Layout,
    defer_batch_norm,
    gpipe,
    gpipe_recomputing,
    interleaved,
    interleaved_in_rounds,
    naive,
    one_f_one_b,
    zero_bubble_h1,
    zero_bubble_h2,
)
from pedagogy.pipeline import stage as stages
from pedagogy.ranks import launch
from tests.equality import TIED_GPT, assert_equal_to_one_process, differences, one_process
from tests.pipeline import mutants
from tests.pipeline.training import (
    BATCH_NORM,
    CHAIN,
    CHAIN_FLOAT32,
    DEEP_GPT,
    DROPOUT,
    FROZEN,
    one_by_one,
    own_stages,
    train,
    train_all,
)

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny tensors, shared cores
    yield
    torch.set_num_threads(before)


ONE_STAGE_PER_RANK = [naive, gpipe, gpipe_recomputing, one_f_one_b, zero_bubble_h1, zero_bubble_h2]


def schedules(p, microbatches):
    """All schedules of p ranks with these numbers of micro-batches, by name."""
    found = {f"{f.__name__} m={m}": f(p, m) for f in ONE_STAGE_PER_RANK for m in microbatches}
    for v in (2, 3):
        found |= {f"interleaved v={v} m={m}": interleaved(p, m, v) for m in (p, 2 * p)}
    rounds = {1: 5, 2: 3, 3: 8, 4: 6}[p]  # no multiple of p, except of 1
    found[f"in rounds v=2 m={rounds}"] = interleaved_in_rounds(p, rounds, 2)
    return found


def found_by(problem, p, cases):
    """What each schedule gets wrong, by name."""
    seed = 7  # p stages of a chain are cut between the two uses of its tied weight
    run = launch(train_all, p, problem, 3, cases, seed)
    expected = one_process(problem)
    return {name: differences(expected, [r[name] for r in run], problem.dtype) for name in cases}


@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_every_schedule_equals_one_process(p):
    cases = schedules(p, [2, 5])  # 12 samples in 5: 3, 3, 2, 2, 2
    assert found_by(CHAIN, p, cases) == {name: [] for name in cases}


@pytest.mark.parametrize("problem", [CHAIN_FLOAT32, FROZEN, TIED_GPT], ids=lambda p: p.name)
@pytest.mark.parametrize("p", [2, 4])
def test_other_problems_equal_one_process(problem, p):
    cases = {f.__name__: f(p, 7) for f in ONE_STAGE_PER_RANK}
    if problem is not TIED_GPT:
        cases["interleaved"] = interleaved(p, 2 * p, 2)
    assert found_by(problem, p, cases) == {name: [] for name in cases}


def test_a_tied_gpt_in_twelve_stages_on_four_ranks_equals_one_process():
    assert_equal_to_one_process(train, DEEP_GPT, 4, interleaved(4, 4, 3))


def drawn(seed, p=3):
    """A schedule drawn by chance: stages on any ranks, actions in any order that can run."""
    draw = random.Random(seed)
    num_stages, m = draw.randint(p, 7), draw.randint(1, 5)
    home = draw.sample(range(p), p) + [draw.randrange(p) for _ in range(num_stages - p)]
    draw.shuffle(home)
    extra = [draw.choice(["", "W", "R"]) for _ in range(num_stages)]
    left = [Action(kind, s, k) for s in range(num_stages) for k in range(m)
            for kind in "FB" + extra[s]]  # fmt: skip
    schedule, done = [[] for _ in range(p)], set()

    def ready(action):
        kind, s, k = action
        needs = {
            "F": [("F", s - 1, k)] if s else [],
            "R": [("F", s, k)],
            "W": [("B", s, k)],
            "B": [("F", s, k), *[("B", s + 1, k)] * (s < num_stages - 1),
                  *[("R", s, k)] * (extra[s] == "R")],
        }  # fmt: skip
        return done.issuperset(needs[kind])

    while left:
        action = draw.choice([action for action in left if ready(action)])
        left.remove(action)
        done.add(action)
        schedule[home[action.stage]].append(action)
    return schedule


def test_schedules_drawn_by_chance_equal_one_process():
    cases = {seed: drawn(seed) for seed in range(15)}
    assert max(Layout(schedule).num_stages for schedule in cases.values()) == 7
    run = launch(train_all, 3, DROPOUT, 3, cases)
    for seed, schedule in cases.items():
        expected = one_by_one(DROPOUT, 3, schedule)
        assert differences(expected, [r[seed] for r in run], DROPOUT.dtype) == [], seed


# --- dropout and BatchNorm: what depends on the micro-batches --------------------------------


def test_dropout_equals_one_process_that_draws_in_the_same_order():
    cases = schedules(3, [5])
    run = launch(train_all, 3, DROPOUT, 3, cases)
    for name, schedule in cases.items():
        expected = one_by_one(DROPOUT, 3, schedule)
        assert differences(expected, [r[name] for r in run], DROPOUT.dtype) == [], name


def test_recomputing_draws_the_same_dropout_to_the_last_bit():
    run = launch(train_all, 3, DROPOUT, 3, {"kept": gpipe(3, 5), "again": gpipe_recomputing(3, 5)})
    for rank in run:
        kept, again = rank["kept"], rank["again"]
        for kind in ("outputs", "gradients", "weights"):
            torch.testing.assert_close(getattr(again, kind), getattr(kept, kind), rtol=0, atol=0)


def train_batch_norm(group, steps, schedule, make_model, patch):
    """The History, and the buffers of this rank's stages, by their names in the model."""
    model, layout = make_model(), Layout(schedule)
    with patch():
        history = train(group, BATCH_NORM, steps, schedule, model=model)
    own, _ = own_stages(group, layout, model)
    mine = {id(buffer) for module in own.values() for buffer in module.buffers()}
    return history, {n: b for n, b in model.named_buffers() if id(b) in mine}


def wrong_statistics(schedule, steps, make_model, patch=contextlib.nullcontext):
    """Names of the buffers that are not those of one process that takes one micro-batch at a time.

    Outputs, gradients and weights must be those as well.
    """
    run = launch(train_batch_norm, 3, steps, schedule, make_model, patch)
    alone = make_model()
    expected = one_by_one(BATCH_NORM, steps, schedule, model=alone)
    assert differences(expected, [history for history, _ in run], BATCH_NORM.dtype) == []
    found = {name: value for _, buffers in run for name, value in buffers.items()}
    assert found.keys() == dict(alone.named_buffers()).keys()
    right = {name: torch.allclose(found[name], b, atol=1e-12) for name, b in alone.named_buffers()}
    return [name for name, equal in right.items() if not equal]


@pytest.mark.parametrize("make", ONE_STAGE_PER_RANK, ids=lambda make: make.__name__)
def test_batch_norm_equals_one_process_that_takes_one_microbatch_at_a_time(make):
    assert wrong_statistics(make(3, 5), 3, BATCH_NORM.model) == []


def counts_twice(module, buffers, arguments):
    """Recomputes on the module's own buffers."""
    return module(*arguments)


def test_a_recomputation_that_counts_batch_norm_twice_is_noticed():
    def patch():
        return mutants.patch.object(stages, "functional_call", counts_twice)

    wrong = wrong_statistics(gpipe_recomputing(3, 5), 1, BATCH_NORM.model, patch)
    assert len(wrong) == 3 * 6  # mean, variance and count of six layers


@pytest.mark.parametrize("make", [one_f_one_b, gpipe_recomputing], ids=lambda make: make.__name__)
def test_deferred_batch_norm_keeps_the_statistics_of_the_whole_batch(make):
    def deferred():
        return defer_batch_norm(BATCH_NORM.model(), 5)

    assert wrong_statistics(make(3, 5), 3, deferred) == []
    model = BATCH_NORM.model()
    model(BATCH_NORM.batch(0)[0])  # the whole batch, once, plain BatchNorm
    expected = dict(model.named_buffers(prefix="norm"))
    run = launch(train_batch_norm, 3, 1, make(3, 5), deferred, contextlib.nullcontext)
    found = {f"norm.{name}": value for _, buffers in run for name, value in buffers.items()}
    first = next(iter(expected)).removesuffix("running_mean")  # later ones see normalised inputs
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        torch.testing.assert_close(found[first + name], expected[first + name])
    counts = [v.item() for name, v in found.items() if name.endswith("num_batches_tracked")]
    assert counts == [1] * 6


# --- mutants -------------------------------------------------------------------------------------


def train_mutants(group):
    """The History of each mutant."""
    found = {}
    for name, (problem, schedule, patch) in mutants.MUTANTS.items():
        with patch():
            found[name] = train(group, problem, 3, schedule)
    return found


@pytest.fixture(scope="module")
def mutated():
    return launch(train_mutants, 3)


@pytest.mark.parametrize("name", mutants.MUTANTS)
def test_the_check_notices_the_mutant(mutated, name):
    problem, schedule, _ = mutants.MUTANTS[name]
    expected = one_by_one(problem, 3, schedule)
    found = differences(expected, [rank[name] for rank in mutated], problem.dtype)
    assert any("gradients" in text for text in found)


def test_the_mutants_problems_and_schedules_are_right_without_them():
    cases = {name: mutants.MUTANTS[name][:2] for name in mutants.MUTANTS}

    def unharmed(group):
        return {name: train(group, problem, 3, s) for name, (problem, s) in cases.items()}

    run = launch(unharmed, 3)
    for name, (problem, schedule) in cases.items():
        expected = one_by_one(problem, 3, schedule)
        assert differences(expected, [rank[name] for rank in run], problem.dtype) == []
