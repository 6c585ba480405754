"""The executor: what it sends and keeps, in which order, how long it takes, what it refuses."""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import cloudpickle
import pytest
import torch
from torch import nn
from torch.nn import functional

from pedagogy.measure import memory_meter
from pedagogy.pipeline import (
    Layout,
    RecomputingStage,
    SplitStage,
    Stage,
    executor,
    gpipe,
    gpipe_recomputing,
    interleaved,
    naive,
    one_f_one_b,
    pipedream,
    run_schedule,
    simulate,
    split_batch,
    zero_bubble_h1,
    zero_bubble_h2,
)
from pedagogy.pipeline.mail import Mail
from pedagogy.ranks import Pace, launch
from tests.equality import differences
from tests.pipeline.training import EVEN, one_by_one, train_all, typed

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SCHEDULES = {
    "naive": naive(3, 4),
    "gpipe": gpipe(3, 5),
    "gpipe, recomputing": gpipe_recomputing(3, 5),
    "1F1B": one_f_one_b(3, 5),
    "1F1B, m < p": one_f_one_b(3, 2),
    "interleaved, v=2": interleaved(3, 6, 2),
    "interleaved, v=3": interleaved(3, 3, 3),
    "h1": zero_bubble_h1(3, 5),
    "h2": zero_bubble_h2(3, 7),
}
WIDTH = 6


def block(layers=1):
    """A stage of one size: each layer leaves one tensor, which its neighbour's backward needs."""
    parts = [part for _ in range(layers) for part in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    return nn.Sequential(*parts).double()


def run_blocks(group, schedule, samples=12, layers=1, **more):
    """One batch through stages of equal blocks."""
    torch.set_num_threads(1)
    layout = Layout(schedule)
    own = {stage: block(layers) for stage in {stage for _, stage, _ in schedule[group.rank]}}
    batch = split_batch(torch.ones(samples, WIDTH, dtype=torch.float64), layout.num_microbatches)
    return run_schedule(group, schedule, own, batch, batch, functional.mse_loss, **more)


def run_all(group, schedules):
    """By name: the run, and the messages that this rank sent, as (bytes, peer)."""
    found = {}
    for name, schedule in schedules.items():
        before = len(group.events)
        run = run_blocks(group, schedule)
        sent = [(e.nbytes, e.peers) for e in group.events[before:] if e.kind == "send"]
        found[name] = run.peak_in_flight, sent
    return found


@pytest.fixture(scope="module")
def all_runs():
    return launch(run_all, 3, SCHEDULES)


@pytest.mark.parametrize("name", SCHEDULES)
def test_each_boundary_carries_every_activation_and_its_gradient(all_runs, name):
    layout, batch_bytes = Layout(SCHEDULES[name]), 12 * WIDTH * 8
    boundaries = [  # (rank before, rank behind), of neighbouring stages
        (layout.rank_of(stage, 0), layout.rank_of(stage + 1, 0))
        for stage in range(layout.num_stages - 1)
    ]
    assert len(boundaries) == 3 * max(layout.chunks) - 1
    for rank, found in enumerate(all_runs):
        touching = sum(pair.count(rank) for pair in boundaries)
        sent = found[name][1]
        assert sum(nbytes for nbytes, _ in sent) == touching * batch_bytes
        assert len(sent) == touching * layout.num_microbatches


@pytest.mark.parametrize("name", SCHEDULES)
def test_as_many_microbatches_are_in_flight_as_the_simulation_says(all_runs, name):
    measured = [found[name][0] for found in all_runs]
    assert measured == simulate(SCHEDULES[name]).peak_in_flight


def test_one_rank_sends_nothing():
    run = launch(run_blocks, 1, interleaved(1, 4, 3))
    assert {event.kind for event in run.trace} == {"F", "B"}


# --- order ---------------------------------------------------------------------------------------

OUT_OF_ORDER = {
    "activations in the other order": typed(
        "F0@0 F1@0 F2@0 B1@0 B2@0 B0@0",
        "F2@1 F0@1 F1@1 B0@1 B2@1 B1@1",
    ),
    "a gradient before an activation that was sent earlier": typed(
        "F0@0 F1@0 F0@2 B0@2 F1@2 B1@2 B0@0 B1@0",
        "F0@1 F1@1 F0@3 B0@3 B0@1 F1@3 B1@3 B1@1",
    ),
}


def test_messages_are_found_in_whatever_order_they_are_needed():
    run = launch(train_all, 2, EVEN, 3, OUT_OF_ORDER)
    for name, schedule in OUT_OF_ORDER.items():
        expected = one_by_one(EVEN, 3, schedule)
        assert differences(expected, [rank[name] for rank in run], EVEN.dtype) == []


def test_a_rank_runs_its_actions_in_the_order_of_its_list():
    for schedule in OUT_OF_ORDER.values():
        run = launch(run_blocks, 2, schedule)
        for rank, actions in enumerate(schedule):
            seen = [e.name for e in run.trace.of(rank=rank) if e.kind in "FB"]
            assert seen == [f"{kind}{k}" for kind, _, k in actions]


def test_messages_far_larger_than_a_socket_buffer_do_not_dead_lock():
    run = launch(run_blocks, 2, interleaved(2, 4, 2), 400_000)  # 4.8 MB each
    assert [one.peak_in_flight for one in run] == simulate(interleaved(2, 4, 2)).peak_in_flight


# --- memory --------------------------------------------------------------------------------------

LAYERS, SAMPLES = 12, 60
TENSOR_BYTES = SAMPLES * WIDTH * 8  # one layer's output, for one micro-batch
# at work: two results or gradients of a layer, the message that came, gradients that were sent and
# may not have arrived, headers; less than half of what one micro-batch in flight holds
TRANSIENT_BYTES = 5 * TENSOR_BYTES


def peaks(group, schedules):
    """By name, the most bytes of activations that this rank held."""
    found = {}
    for name, schedule in schedules.items():
        with memory_meter() as meter:
            before = meter.now
            stages = {stage: block(LAYERS) for stage in {s for _, s, _ in schedule[group.rank]}}
            weights = meter.now - before
            m = Layout(schedule).num_microbatches
            batch = [torch.ones(SAMPLES, WIDTH, dtype=torch.float64) for _ in range(m)]
            batch_bytes = meter.now - weights - before
            run_schedule(group, schedule, stages, batch, batch, functional.mse_loss)
        # weights and the micro-batches themselves are not what is looked at; gradients are as large
        # as weights, if they are there at the peak
        found[name] = meter.peak - weights - batch_bytes, weights
    return found


def test_a_stage_holds_its_layers_outputs_of_the_microbatches_in_flight():
    cases = {
        "gpipe": gpipe(3, 6),
        "1F1B": one_f_one_b(3, 6),
        "interleaved": interleaved(3, 6, 2),
    }
    run = launch(peaks, 3, cases)
    for name, schedule in cases.items():
        layout, expected = Layout(schedule), simulate(schedule).peak_in_flight
        for rank, one in enumerate(run):
            found, gradients = one[name]
            # each layer's output; the input as well, where it came by message
            held = LAYERS * expected[rank] * TENSOR_BYTES
            inputs = 0 if rank == 0 and layout.chunks[0] == 1 else expected[rank] * TENSOR_BYTES
            transient = layout.chunks[rank] * TRANSIENT_BYTES
            assert held <= found, (name, rank)
            assert found <= held + inputs + gradients + transient, (name, rank)


def test_recomputing_holds_boundaries_and_the_layers_of_one_microbatch():
    m = 8
    for rank, one in enumerate(launch(peaks, 3, {"again": gpipe_recomputing(3, m)})):
        found, gradients = one["again"]
        # inputs; and outputs, which are kept until it is known that they have arrived
        boundaries = m * ((rank > 0) + (rank < 2)) * TENSOR_BYTES
        assert boundaries <= found
        assert found <= boundaries + LAYERS * TENSOR_BYTES + gradients + TRANSIENT_BYTES
        assert found < m * LAYERS * TENSOR_BYTES / 2


def test_a_split_backward_leaves_gradients_without_a_graph():
    stage = SplitStage(block(2))
    for k in range(2):
        stage.forward(k, torch.ones(3, WIDTH, dtype=torch.float64).requires_grad_(), torch.sum)
        stage.backward(k, None)
        stage.weight_backward(k)
    assert all(parameter.grad.grad_fn is None for parameter in stage.module.parameters())
    assert stage.in_flight == 0


# --- time ----------------------------------------------------------------------------------------

PASS_SECONDS = 0.02  # a forward of one stage


def run_paced(group, schedule, patch=None, **costs):
    """For each repeat, this rank's compute as (start, end), in units since the start of all."""
    if patch is not None:
        executor.Mail = patch
    found = []
    unit = PASS_SECONDS * Layout(schedule).chunks[0]
    for _ in range(4):
        group.barrier()
        before = len(group.events)
        run_blocks(group, schedule, pace=Pace(unit), **costs)
        events = [e for e in group.events[before:] if e.kind in "FBW"]
        found.append([(e.start / unit, e.end / unit) for e in events])
    return found


def measured(schedule, patch=None, **costs):
    """Bubble fraction and makespan in units, of the fastest of the repeats.

    A busy machine makes a paced run longer, never shorter.
    """
    run = launch(run_paced, len(schedule), schedule, patch, **costs)
    found = []
    for spans in zip(*run, strict=True):
        flat = [span for mine in spans for span in mine]
        makespan = max(end for _, end in flat) - min(start for start, _ in flat)
        busy = sum(end - start for start, end in flat)
        found.append((makespan, 1 - busy / (len(schedule) * makespan)))
    makespan, bubble = min(found)
    return bubble, makespan


@pytest.mark.parametrize(
    "schedule",
    [gpipe(4, 8), one_f_one_b(4, 8), interleaved(4, 8, 2)],
    ids=["gpipe", "1F1B", "interleaved"],
)
def test_a_paced_run_has_the_bubble_of_the_simulation(schedule):
    bubble, makespan = measured(schedule)
    expected = simulate(schedule)
    assert bubble == pytest.approx(expected.bubble_fraction, abs=0.05)
    assert makespan == pytest.approx(expected.makespan, rel=0.1)


def test_a_slow_stage_moves_the_timeline_as_the_simulation_says():
    costs = {"forward": [1, 1, 2, 1], "backward": [2, 2, 4, 2]}
    expected = simulate(one_f_one_b(4, 8), **costs)
    assert expected.makespan == 55
    bubble, makespan = measured(one_f_one_b(4, 8), **costs)
    assert bubble == pytest.approx(expected.bubble_fraction, abs=0.05)
    assert makespan == pytest.approx(55, rel=0.1)


DELAY = 2  # units


class SlowMail(Mail):
    """Each message leaves its rank later; the rank goes on."""

    def __init__(self, *arguments):
        self.lock, self.postman = threading.Lock(), ThreadPoolExecutor(1)
        super().__init__(*arguments)

    def send(self, x, consumer):
        due = time.perf_counter() + DELAY * PASS_SECONDS
        self.postman.submit(self.send_at, due, x, consumer)

    def send_at(self, due, x, consumer):
        time.sleep(max(0.0, due - time.perf_counter()))
        with self.lock:
            super().send(x, consumer)

    def _acknowledge(self, peer, place):
        with self.lock:
            super()._acknowledge(peer, place)

    def close(self):
        self.postman.shutdown()
        super().close()


def test_delayed_messages_move_the_timeline_as_the_simulation_says():
    schedule = one_f_one_b(3, 5)
    late, prompt = simulate(schedule, communication=DELAY), simulate(schedule)
    assert late.makespan >= prompt.makespan + 2 * DELAY
    bubble, makespan = measured(schedule, patch=SlowMail)
    assert bubble == pytest.approx(late.bubble_fraction, abs=0.05)
    assert makespan == pytest.approx(late.makespan, rel=0.1)


# --- refusals ------------------------------------------------------------------------------------


def refusals(group, attempts):
    """What each attempt raised, and the number of messages that were logged."""
    said = []
    x = torch.ones(4, WIDTH, dtype=torch.float64)
    for schedule, make_stages, num_inputs, num_targets in attempts:
        inputs, targets = split_batch(x, num_inputs), split_batch(x, num_targets)
        try:
            stages = make_stages(group.rank)
            run_schedule(group, schedule, stages, inputs, targets, functional.mse_loss)
        except ValueError as error:
            said.append(str(error))
    return said, len(group.events)


def test_what_does_not_fit_is_refused_before_anything_is_sent():
    attempts = [
        (gpipe(3, 2), lambda rank: {rank: block()}, 2, 2),
        (gpipe(2, 2), lambda rank: {rank + 1: block()}, 2, 2),
        (gpipe(2, 2), lambda rank: {rank: block()}, 3, 2),
        (gpipe(2, 2), lambda rank: {rank: block()}, 2, 1),
        (zero_bubble_h1(2, 2), lambda rank: {rank: Stage(block())}, 2, 2),
        (gpipe_recomputing(2, 2), lambda rank: {rank: SplitStage(block())}, 2, 2),
        (pipedream(2, 2), lambda rank: {rank: RecomputingStage(block())}, 2, 2),
        ([actions[:-1] for actions in zero_bubble_h1(2, 2)], lambda rank: {rank: block()}, 2, 2),
        (gpipe(2, 2), lambda rank: {rank: SplitStage(block())}, 2, 2),
    ]
    for rank, (said, messages) in enumerate(launch(refusals, 2, attempts)):
        assert messages == 0
        expected = [
            "a schedule for 3 ranks on a group of 2",
            f"rank {rank} has no stage [{rank}]; it got [{rank + 1}]",
            "3 inputs for a schedule of 2 micro-batches",
            "1 targets for a schedule of 2 micro-batches",
            f"the schedule has W for stage {rank}, but a Stage has no weight_backward",
            f"the schedule has R for stage {rank}, but a SplitStage has no recompute",
            f"the schedule has U for stage {rank}, but a RecomputingStage has no update",
            *(
                f"stage {rank} runs its backward in two halves, but the schedule has no W of the "
                f"micro-batches {missing}"
                for missing in ([1], [0, 1])
            ),
        ]
        assert len(said) == len(expected)
        for text, start in zip(said, expected, strict=True):
            assert text.startswith(start)


def test_more_microbatches_than_samples_are_refused():
    with pytest.raises(ValueError, match="batch of 3 cannot be split into 4 micro-batches"):
        split_batch(torch.zeros(3), 4)
