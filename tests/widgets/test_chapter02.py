"""The pipeline explorers say what is true, and never answer a control with an error."""

from itertools import product

import pytest
from matplotlib.text import Text

from pedagogy.costs.pipeline import bubble_fraction, in_flight
from pedagogy.costs.pipeline_batch import step_seconds
from pedagogy.pipeline import gpipe_recomputing
from pedagogy.widgets.chapter02 import pipeline_explorer
from pedagogy.widgets.pipeline_plans import (
    SCHEDULES,
    Setting,
    bubbles,
    moments,
    num_bubbles,
    simulated,
)

INTERLEAVED = "interleaved 1F1B"
PLAIN = {"backward": 2.0, "fixed_time": 0.0, "message_time": 0.0}


@pytest.fixture
def pipeline():
    made = pipeline_explorer()
    yield made
    made.close()


def chosen(explorer, label):
    (values,) = [trial.values for trial in explorer.try_this if trial.label == label]
    return explorer.set(**values)


def setting(schedule, ranks, microbatches, chunks=1, **times):
    return Setting(schedule, ranks, microbatches, chunks, **{**PLAIN, **times})


def test_N09_every_schedule_is_drawn_at_one_size(pipeline):
    for schedule, (ranks, microbatches) in product(SCHEDULES, [(1, 1), (3, 7), (8, 32)]):
        pipeline.set(schedule=schedule, ranks=ranks, microbatches=microbatches, bubble=1, step=2)
        assert pipeline.error is None, (schedule, ranks, microbatches)
        assert tuple(pipeline.figure.get_size_inches()) == (10.0, 6.0)


def test_every_control_can_be_moved_over_its_whole_range(pipeline):
    for schedule in ("1F1B", INTERLEAVED):
        pipeline.set(schedule=schedule, ranks=4, microbatches=8, bubble=0, step=0)
        for name, widget in pipeline.controls.items():
            for value in getattr(widget, "options", None) or [widget.min, widget.max]:
                widget.value = value
                assert pipeline.error is None, (schedule, name, value)


def test_C54_the_interleaved_schedule_is_offered_multiples_of_p_alone(pipeline):
    pipeline.set(schedule=INTERLEAVED, ranks=4, microbatches=10)
    for ranks in (1, 3, 8, 5, 4):
        pipeline.controls["ranks"].value = ranks
        for asked in (1, 10):
            pipeline.controls["microbatches"].value = asked
            got = pipeline.values["microbatches"]
            assert got % ranks == 0
            assert abs(got - asked) <= ranks
            assert pipeline.error is None
        widget = pipeline.controls["microbatches"]
        assert (widget.min, widget.step) == (ranks, ranks)
        assert widget.max == 32 // ranks * ranks
    pipeline.set(schedule="GPipe", microbatches=31)
    assert pipeline.values["microbatches"] == 31


def test_a_number_of_micro_batches_that_the_schedule_changed_is_told(pipeline):
    pipeline.set(schedule="1F1B", ranks=4, microbatches=6)
    pipeline.controls["schedule"].value = INTERLEAVED
    told = "microbatches went from 6 to 4: the interleaved schedule takes multiples of p = 4 alone."
    assert pipeline.values["microbatches"] == 4
    assert pipeline.readout.endswith(told)
    assert told in pipeline.view.value
    pipeline.controls["ranks"].value = 3
    assert "microbatches went from 4 to 3: " in pipeline.readout
    pipeline.controls["chunks"].value = 3
    assert "went from" not in pipeline.readout
    pipeline.set(schedule=INTERLEAVED, ranks=4, microbatches=12)
    assert "went from" not in pipeline.readout


def test_a_recomputing_schedule_is_said_to_keep_inputs(pipeline):
    pipeline.set(schedule="GPipe, recomputing", ranks=4, microbatches=8)
    assert "at most 8, 8, 8, 8 inputs kept, by rank" in pipeline.readout
    written = " ".join(text.get_text() for text in pipeline.figure.findobj(Text))
    assert "peak 8 inputs kept" in written
    assert "inputs kept (all activations: of one micro-batch alone, from its R to its B)" in written
    assert "in flight" not in written + pipeline.readout


def test_only_one_micro_batch_s_activations_are_kept_between_r_and_b():
    for actions in gpipe_recomputing(4, 8):
        kept = 0
        for action in actions:
            kept += {"R": 1, "B": -1}.get(action.kind, 0)
            assert 0 <= kept <= 1


def test_chunks_can_be_chosen_where_there_are_chunks(pipeline):
    assert pipeline.controls["chunks"].disabled
    pipeline.controls["schedule"].value = INTERLEAVED
    assert not pipeline.controls["chunks"].disabled


@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 4), (4, 1), (4, 8), (8, 32)])
@pytest.mark.parametrize("fixed", [0.0, 0.25])
def test_the_batch_is_fixed_so_that_a_finer_cut_makes_smaller_pieces(ranks, microbatches, fixed):
    found = simulated(setting("1F1B", ranks, microbatches, fixed_time=fixed))
    # a batch of 32 samples: forward and backward of one take 3 times a quarter
    expected = step_seconds(ranks, 32, microbatches, 3 * fixed, 3 / 4)
    assert found.makespan == pytest.approx(expected)


def test_K16_larger_micro_batches_at_a_fixed_batch_make_the_bubble_larger():
    found = [simulated(setting("GPipe", 8, m)).bubble_fraction for m in (32, 16, 8)]
    assert found == pytest.approx([7 / 39, 7 / 23, 7 / 15])
    work = [sum(simulated(setting("GPipe", 8, m)).busy) for m in (32, 16, 8)]
    assert work == pytest.approx([8 * 24] * 3)


def test_K13_the_readout_names_both_denominators(pipeline):
    pipeline.set(schedule="1F1B", ranks=4, microbatches=8)
    assert "bubble_fraction 0.273 of the total, bubble_ratio 0.375 to the work" in pipeline.readout
    pipeline.set(schedule=INTERLEAVED, chunks=2)
    assert "bubble_fraction 0.158 of the total, bubble_ratio 0.188 to the work" in pipeline.readout


@pytest.mark.parametrize("message", [0.0, 0.2])
@pytest.mark.parametrize("name", SCHEDULES)
def test_bubbles_and_work_make_up_each_ranks_time_until_its_end(name, message):
    chosen = setting(name, 4, 8, 2, message_time=message)
    simulation = simulated(chosen)
    for rank in range(4):
        idle = sum(w.end - w.start for w in bubbles(chosen) if w.rank == rank)
        last = max(end for action, end in simulation.end.items() if on(simulation, action) == rank)
        assert idle + simulation.busy[rank] == pytest.approx(last)
    assert num_bubbles(chosen) == len(bubbles(chosen)) > 0


def on(simulation, action):
    return simulation.layout.rank_of(action.stage, action.microbatch)


def test_a_chosen_bubble_is_outlined_and_its_cause_is_written(pipeline):
    pipeline.set(schedule="1F1B", ranks=4, microbatches=8, bubble=1)
    boxes = {p.get_gid(): (p.get_x(), p.get_width()) for p in pipeline.figure.axes[0].patches}
    assert boxes == {"bubble": (4, 6), "cause": (8, 2)}
    assert pipeline.readout.endswith(
        "Bubble 1 of 12: rank 0 is idle from 4 to 10. "
        "B0@0 needs the gradient of B0@1 from rank 1, which ends B0@1 at 10."
    )


@pytest.mark.parametrize(
    "schedule", ["1F1B", INTERLEAVED, "Zero bubble H1", "PipeDream (no flush)"]
)
def test_every_bubble_can_be_chosen(pipeline, schedule):
    pipeline.set(schedule=schedule, ranks=3, microbatches=3, chunks=2, bubble=0)
    last = pipeline.controls["bubble"].max
    for bubble in range(1, last + 1):
        pipeline.set(bubble=bubble)
        assert f"Bubble {bubble} of {last}: rank" in pipeline.readout


def test_one_rank_has_no_bubble_to_choose(pipeline):
    pipeline.set(ranks=1, bubble=1)
    assert pipeline.controls["bubble"].disabled
    assert "Bubble" not in pipeline.readout


def test_steps_reveal_the_schedule_until_all_is_seen(pipeline):
    pipeline.set(schedule="1F1B", ranks=2, microbatches=2)
    times = moments(setting("1F1B", 2, 2))
    # rank 0: F0 F1 .  .  B0-B0 .  B1-B1
    # rank 1: .  F0 B0-B0 F1 B1-B1 .  .      each column takes 4, half of the batch
    assert times == [4 * column for column in (1, 2, 4, 5, 7, 9)]
    assert pipeline.controls["step"].max == len(times)
    for step, time in enumerate(times, start=1):
        pipeline.set(step=step)
        assert {p.get_x() for ax in pipeline.figure.axes for p in ax.patches} == {time}
    pipeline.set(step=0)
    assert not pipeline.figure.axes[0].patches


def test_try_one_bubble_two_memories(pipeline):
    gpipe, one_f_one_b = simulated(setting("GPipe", 4, 8)), simulated(setting("1F1B", 4, 8))
    readout = chosen(pipeline, "one bubble, two memories").readout
    assert gpipe.bubble_fraction == pytest.approx(bubble_fraction(4, 8))
    assert gpipe.makespan == one_f_one_b.makespan
    assert "bubble_fraction 0.273" in readout
    assert "at most 4, 3, 2, 1 micro-batches in flight" in readout
    assert gpipe.peak_in_flight == [in_flight("gpipe", s, 4, 8) for s in range(4)] == [8] * 4


def test_try_two_chunks_a_rank(pipeline):
    readout = chosen(pipeline, "two chunks a rank").readout
    assert f"bubble_fraction {bubble_fraction(4, 8, 2):.3f}" in readout
    assert "0.158" in readout
    assert "at most 11, 9, 7, 5 micro-batch chunks" in readout


def test_try_cut_too_finely_shows_a_smaller_bubble_and_a_longer_step(pipeline):
    finely = chosen(pipeline, "cut too finely").readout
    assert pipeline.values["fixed_time"] == 0.25
    assert "makespan 52.5 " in finely
    assert f"bubble_fraction {bubble_fraction(4, 32):.3f} of the total" in finely
    coarsely = pipeline.set(microbatches=8).readout
    assert "makespan 41.25 " in coarsely
    assert f"bubble_fraction {bubble_fraction(4, 8):.3f} of the total" in coarsely


def test_what_is_to_be_guessed_is_not_said_beside_the_button(pipeline):
    (trial,) = [trial for trial in pipeline.try_this if trial.label == "cut too finely"]
    assert "fixed time" in trial.outcome
    assert pipeline.controls["fixed_time"].description == "fixed time"
    for told in ("0.086", "52.5", "41.25", "smaller", "longer"):
        assert told not in trial.outcome
