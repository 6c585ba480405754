"""The evidence on asynchronous pipelines: right for what is right, and against what is wrong."""

import sys
from functools import partial

import cloudpickle
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from pedagogy.pipeline import (
    Layout,
    StashingStage,
    TwoVersionStage,
    UnstashedStage,
    VerticalSyncStage,
    pipedream,
    pipedream_2bw,
    pipedream_replicated,
    replica_group,
    run_schedule,
    schedule_text,
    simulate,
)
from pedagogy.pipeline.asynchronous_alone import (
    digit_minibatches,
    digit_stages,
    flushed,
    losses_of,
    replicated_by_recursion,
    run_alone,
)
from pedagogy.pipeline.asynchronous_evidence import (
    Recorder,
    gradient_errors,
    in_units,
    kept_curves,
    most_in_flight,
    same_history,
    used_by_stage,
    versions_met,
    whole,
)
from pedagogy.ranks import Event, launch

cloudpickle.register_pickle_by_value(sys.modules[__name__])

momentum = partial(torch.optim.SGD, lr=0.05, momentum=0.5)
MAKE_STAGE = {
    "no stashing": UnstashedStage,
    "stashing": StashingStage,
    "vertical sync": partial(VerticalSyncStage, num_stages=3),
    "2BW": partial(TwoVersionStage, per_batch=3),
}


def on_ranks(group, schedule, make_stage, data):
    module = digit_stages(group.size)[group.rank]
    recorder = Recorder(make_stage(module, momentum))
    run_schedule(group, schedule, {group.rank: recorder}, *data, cross_entropy)
    return recorder.record


def in_one_process(schedule, make_stage, data, num_stages=3):
    recorders = [Recorder(make_stage(stage, momentum)) for stage in digit_stages(num_stages)]
    run_alone(schedule, recorders, *data, cross_entropy)
    return [recorder.record for recorder in recorders]


def histories(records):
    return whole([record.history for record in records])


def plain_sgd(data, num_stages=3):
    """One undivided model, minibatch after minibatch; its weights after every update."""
    model = nn.Sequential(*digit_stages(num_stages))
    optimizer = momentum(model.parameters())
    history = [[w.detach().clone() for w in model.parameters()]]
    for x, target in zip(*data, strict=True):
        optimizer.zero_grad()
        cross_entropy(model(x), target).backward()
        optimizer.step()
        history.append([w.detach().clone() for w in model.parameters()])
    return history


@pytest.mark.parametrize("rule", MAKE_STAGE)
def test_one_process_works_through_a_schedule_to_the_weights_of_the_ranks(rule):
    schedule = pipedream_2bw(3, 3, 3) if rule == "2BW" else pipedream(3, 9)
    data = digit_minibatches(9, 5)
    ranks = launch(on_ranks, 3, schedule, MAKE_STAGE[rule], data)
    alone = in_one_process(schedule, MAKE_STAGE[rule], data)
    assert same_history(histories(ranks), histories(alone), tolerance=1e-12)
    for mine, other in zip(ranks, alone, strict=True):
        assert (mine.used, mine.kept, mine.peak_bytes) == (
            other.used,
            other.kept,
            other.peak_bytes,
        )


def test_flushed_is_1f1b_once_per_batch_with_one_update_each():
    assert schedule_text(flushed(2, 2, 2)) == (
        "F0 F1 B0 B1 U1 F2 F3 B2 B3 U3\nF0 B0 F1 B1 U1 F2 B2 F3 B3 U3"
    )


def test_a_flushed_pipeline_keeps_one_version_and_equals_plain_sgd_on_uneven_microbatches():
    data = digit_minibatches(4, 7)  # cut into 3, 2, 2
    pieces = [[part for one in tensors for part in one.tensor_split(3)] for tensors in data]
    records = in_one_process(flushed(3, 4, 3), StashingStage, pieces)
    assert same_history(histories(records), plain_sgd(data))
    assert [record.peak_versions for record in records] == [1, 1, 1]


def test_the_versions_met_are_the_updates_before_the_forward_in_a_ranks_list():
    met = versions_met(pipedream(3, 5))
    assert [met[0, k] for k in range(5)] == [0, 0, 0, 1, 2]
    assert [met[2, k] for k in range(5)] == [0, 1, 2, 3, 4]
    records = in_one_process(pipedream(3, 5), StashingStage, digit_minibatches(5, 4))
    assert {cell: forward for cell, (forward, _) in used_by_stage(records).items()} == met


def test_with_stashing_every_gradient_is_the_gradient_there_and_without_only_the_last_stages_is():
    data = digit_minibatches(8, 6)
    stashed = in_one_process(pipedream(3, 8), StashingStage, data)
    errors = gradient_errors(stashed, digit_stages(3), *data, cross_entropy)
    assert max(max(one) for one in errors) < 1e-12
    unstashed = in_one_process(pipedream(3, 8), UnstashedStage, data)
    first, middle, last = gradient_errors(unstashed, digit_stages(3), *data, cross_entropy)
    assert max(last) < 1e-12
    assert first[0] < 1e-12
    assert middle[0] < 1e-12
    assert min(first[1:] + middle[1:]) > 1e-3


def test_the_bytes_are_those_of_the_distinct_tensors_that_are_kept():
    data = digit_minibatches(8, 6)
    own = [sum(w.nbytes for w in stage.parameters()) for stage in digit_stages(3)]
    for rule, versions in (
        ("no stashing", [1, 1, 1]),
        ("stashing", [3, 2, 1]),
        ("vertical sync", [3, 3, 3]),
    ):
        records = in_one_process(pipedream(3, 8), MAKE_STAGE[rule], data)
        expected = [count * size for count, size in zip(versions, own, strict=True)]
        assert [record.peak_bytes for record in records] == expected, rule


def test_curves_of_versions_are_in_simulated_time_and_may_be_cut_short():
    records = in_one_process(pipedream(2, 5), StashingStage, digit_minibatches(5, 4), 2)
    curves = kept_curves(records, simulate(pipedream(2, 3)))
    # stage 0: F0 F1 . B0 ends at 6, B1 at 9, B2 at 12; stage 1: B0 ends at 4, then every 3
    assert [time for time, _ in curves[0]] == [0, 6, 9, 12]
    assert [time for time, _ in curves[1]] == [0, 4, 7, 10]
    assert [count for _, count in curves[1]] == [1, 1, 1, 1]
    assert max(count for _, count in curves[0]) == 2


def test_histories_differ_in_one_weight_of_one_update_or_in_length():
    history = [[torch.ones(2), torch.zeros(1)], [torch.ones(2), torch.ones(1)]]
    other = [[w.clone() for w in at] for at in history]
    assert same_history(history, other)
    other[1][0][1] += 1e-6
    assert not same_history(history, other)
    assert not same_history(history, history[:1])


def test_a_runs_events_are_counted_and_timed_from_its_first_compute():
    names = [("F", 0, 1.0), ("F", 0, 2.0), ("B", 0, 3.0), ("F", 1, 2.0), ("B", 1, 3.0)]
    events = [Event(rank, kind, kind, start, start + 0.5) for kind, rank, start in names]
    events.append(Event(0, "send", "", 0.0, 9.0))
    assert most_in_flight(events) == [2, 1]
    assert [(e.start, e.end) for e in in_units(events, 0.5)][:2] == [(0.0, 1.0), (2.0, 3.0)]


def replicated(group, schedule, data):
    layout = Layout(schedule)
    stage = schedule[group.rank][0].stage
    module = digit_stages(layout.num_stages)[stage]
    replicas = replica_group(group, layout, stage)
    recorder = Recorder(StashingStage(module, momentum, replicas))
    run_schedule(group, schedule, {stage: recorder}, *data, cross_entropy)
    return stage, recorder.record


@pytest.mark.parametrize("replicas", [[3, 1], [2, 1, 1]])
def test_replicated_stages_follow_the_recursion_in_which_each_stage_counts_its_own_updates(
    replicas,
):
    schedule, data = pipedream_replicated(replicas, 12), digit_minibatches(12, 4)
    met = versions_met(schedule)
    recursion = (momentum, *data, cross_entropy, lambda k, s: met[s, k])
    expected = replicated_by_recursion(digit_stages(len(replicas)), *recursion, replicas)
    assert [len(history) - 1 for history in expected] == [12 // count for count in replicas]
    for stage, record in launch(replicated, sum(replicas), schedule, data):
        assert same_history(record.history, expected[stage])
    sums = replicated_by_recursion(digit_stages(len(replicas)), *recursion, [1] * len(replicas))
    assert not same_history(expected[0], sums[0][:: replicas[0]])


def test_losses_are_those_of_each_version():
    x, target = (tensors[0] for tensors in digit_minibatches(1, 9))
    history = plain_sgd(digit_minibatches(2, 9))
    found = losses_of(history, digit_stages(3, seed=5), x, target, cross_entropy)
    assert len(found) == 3
    first = cross_entropy(nn.Sequential(*digit_stages(3))(x), target).item()
    assert found[0] == pytest.approx(first, rel=1e-12)
    assert found[1] < found[0]


def test_a_stage_refuses_another_rules_schedule_inside_a_recorder_and_alone():
    stages = [Recorder(TwoVersionStage(stage, momentum, 3)) for stage in digit_stages(3)]
    with pytest.raises(ValueError, match=r"needs \[2, 5\]"):
        run_alone(pipedream(3, 6), stages, *digit_minibatches(6, 4), cross_entropy)
