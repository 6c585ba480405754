"""The pipeline explorers say what is true, and never answer a control with an error."""

from itertools import product

import pytest

from pedagogy.costs.pipeline import bubble_fraction, in_flight
from pedagogy.costs.pipeline_batch import step_seconds
from pedagogy.plots.lanes import blocks
from pedagogy.widgets.chapter02 import own_schedule_explorer, pipeline_explorer
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


@pytest.fixture
def own():
    made = own_schedule_explorer()
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


@pytest.mark.parametrize("schedule", ["1F1B", INTERLEAVED, "ZB-H1", "PipeDream (no flush)"])
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


def test_try_cut_too_finely(pipeline):
    readout = chosen(pipeline, "cut too finely").readout
    assert "makespan 52.5" in readout
    assert f"bubble_fraction {bubble_fraction(4, 32):.3f} of the total" in readout
    assert "0.086" in readout
    assert simulated(setting("GPipe", 4, 8, fixed_time=0.25)).makespan == 41.25


def panel_titles(figure):
    return [text.get_text() for text in figure.texts if text.get_gid() == "title"][::2]


def test_ones_own_schedule_stands_under_the_reference_on_one_axis(own):
    own.set(text="F0 F1 B0 B1\nF0 B0 F1 B1", reference="GPipe")
    assert panel_titles(own.figure) == ["GPipe, for comparison", "Yours"]
    upper, lower = own.figure.axes
    assert upper.get_xlim() == lower.get_xlim()
    assert blocks(lower, "forward") == [(0, 0, 1), (0, 1, 2), (1, 1, 2), (1, 4, 5)]
    assert own.readout.startswith("Yours takes 9, GPipe 9; bubble_fraction 0.333 against 0.333")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no line"),
        ("F0 B0\nF0 B", "'B' is no action"),
        ("F0 B0\nF0", "B0@1 is missing"),
        ("F0 B0 F0", "F0@0 stands in the schedule twice"),
        ("B0 F0", "dead-lock"),
        ("F999999999 B0", "numbers below 32"),
        ("F0 B0\n" * 9, "9 ranks"),
    ],
)
def test_what_cannot_run_is_answered_with_the_reason_in_the_picture(own, text, reason):
    own.set(text=text)
    assert own.error is None
    (shown,) = [t.get_text() for t in own.figure.texts if t.get_gid() == "reason"]
    assert reason in " ".join(shown.split())
    assert own.readout.startswith("Yours cannot run: ")
    assert len(panel_titles(own.figure)) == 1
    assert tuple(own.figure.get_size_inches()) == (10.0, 5.2)


def test_the_reason_is_written_below_the_picture_and_above_its_end(own):
    ring = "\n".join(f"F{k} B{k} F{1 - k} B{1 - k}" for k in (0, 1, 0, 1, 0, 1, 0, 1))
    own.set(text=ring)
    (box,) = [t.get_window_extent() for t in own.figure.texts if t.get_gid() == "reason"]
    assert box.y0 > 0
    assert box.x1 < 1000
    assert box.y1 < own.figure.axes[0].get_window_extent().y0 - 40


def test_try_a_dead_lock(own):
    readout = chosen(own, "a dead-lock").readout
    assert "rank 0 stands at B0@0 and waits for B0@1 of rank 1" in readout
    assert "rank 1 stands at F1@1 and waits for F1@0 of rank 0" in readout


def test_try_less_in_flight(own):
    readout = chosen(own, "less in flight").readout
    assert readout.startswith("Yours takes 24, 1F1B 18;")
    assert "at most 2, 2, 1 in flight against 3, 2, 1" in readout


def test_try_fill_the_drain(own):
    readout = chosen(own, "fill the drain").readout
    assert readout.startswith("Yours takes 14, 1F1B 18;")
    lower = own.figure.axes[1]
    work = sum(e - s for gid in ("forward", "backward", "weight") for _, s, e in blocks(lower, gid))
    assert work == 3 * 4 * 3
