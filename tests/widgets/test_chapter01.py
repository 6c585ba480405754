"""The explorers of chapter 01 say what is true, over all their controls."""

import pytest

from pedagogy.costs.communication import all_reduce_seconds
from pedagogy.plots.lanes import blocks
from pedagogy.widgets import chapter01
from pedagogy.widgets.chapter01 import PIECE_BYTES, PIECES, RANKS, efficiencies, overlap
from pedagogy.widgets.collective_states import all_reduce, states_of


@pytest.fixture
def explorer(request):
    made = request.param()
    yield made
    made.close()


ring = pytest.mark.parametrize("explorer", [chapter01.ring_all_reduce_explorer], indirect=True)
buckets = pytest.mark.parametrize("explorer", [chapter01.bucket_overlap_explorer], indirect=True)
scaling = pytest.mark.parametrize("explorer", [chapter01.scaling_explorer], indirect=True)
both = pytest.mark.parametrize(
    "explorer", [chapter01.bucket_overlap_explorer, chapter01.scaling_explorer], indirect=True
)


def chosen(explorer, label):
    (values,) = [trial.values for trial in explorer.try_this if trial.label == label]
    return explorer.set(**values)


def link_of(values):
    """bandwidth, latency and backward of the bucket explorer, in bytes a second and seconds."""
    return (
        values["bandwidth_GB_s"] * 1e9,
        values["latency_us"] * 1e-6,
        values["backward_ms"] * 1e-3,
    )


@ring
def test_N09_every_step_of_every_ring_is_drawn_at_one_size(explorer):
    for ranks in range(2, 9):
        for step in (0, 1, ranks - 1, ranks, 2 * ranks - 2):
            explorer.set(ranks=ranks, step=step)
            assert explorer.error is None
            assert explorer.values == {"ranks": ranks, "step": step}
            assert tuple(explorer.figure.get_size_inches()) == (10.0, 4.6)


@ring
def test_the_readout_names_the_phase_and_what_was_sent(explorer):
    assert "2(N-1)/N = 1.5 tensors, under 2 for any N" in explorer.readout
    explorer.set(step=3)
    assert explorer.readout.startswith("Step 3 of 6, reduce_scatter: each rank has sent 0.75 times")
    explorer.set(step=4)
    assert explorer.readout.startswith("Step 4 of 6, all_gather: each rank has sent 1 times")


@ring
def test_fewer_ranks_have_fewer_steps(explorer):
    explorer.set(ranks=8, step=14)
    explorer.set(ranks=3)
    assert explorer.values == {"ranks": 3, "step": 4}


@ring
def test_try_two_ranks_each_sends_exactly_one_tensor(explorer):
    assert "each rank has sent 1 times the tensor" in chosen(explorer, "two ranks").readout


@ring
def test_try_half_way_each_rank_holds_another_finished_chunk(explorer):
    values = chosen(explorer, "half-way with 4").values
    state = states_of(all_reduce(4))[values["step"]]
    full = [[c for c in range(4) if len(row[c]) == 4] for row in state]
    assert sorted(full) == [[0], [1], [2], [3]]
    assert len(blocks(explorer.figure.axes[1], "full")) == 4


@ring
def test_try_eight_ranks_take_14_steps_and_send_1_75_tensors(explorer):
    readout = chosen(explorer, "eight ranks").readout
    assert readout.startswith("Step 14 of 14, all_gather: each rank has sent 1.75 times")


@pytest.mark.parametrize("bucket_bytes", [5 * 10**6, 30 * 10**6, 10**9])
def test_a_bucket_starts_when_it_is_full_and_the_link_is_free(bucket_bytes):
    found = overlap(bucket_bytes, 1e9, 1e-5, 0.1)
    assert len(found.layers) == PIECES
    free = 0.0
    for bucket, (start, end) in enumerate(found.buckets):
        pieces = [(a, b) for a, b, its in found.layers if its == bucket]
        ready = pieces[-1][1]
        assert start == pytest.approx(max(ready, free))
        size = len(pieces) * PIECE_BYTES
        assert end - start == pytest.approx(all_reduce_seconds(size, RANKS, 1e-5, 1e-9))
        assert size >= bucket_bytes or bucket == len(found.buckets) - 1
        free = end
    assert found.exposed_seconds == pytest.approx(free - 0.1)


@buckets
def test_the_blocks_are_the_pieces_of_backward_and_the_all_reduces(explorer):
    found = overlap(30 * 10**6, *link_of(explorer.values))
    lanes = explorer.figure.axes[0]
    assert [(a, b) for _, a, b in blocks(lanes, "backward")] == [(a, b) for a, b, _ in found.layers]
    assert [(a, b) for _, a, b in blocks(lanes, "all_reduce")] == found.buckets
    (rest,) = blocks(lanes, "exposed")
    assert rest[2] - rest[1] == pytest.approx(found.exposed_seconds)


@buckets
def test_the_curve_marks_the_chosen_bucket(explorer):
    explorer.set(bucket_bytes=100 * 10**6)
    (mark,) = [line for line in explorer.figure.axes[1].lines if line.get_gid() == "chosen"]
    exposed = overlap(100 * 10**6, *link_of(explorer.values)).exposed_seconds
    assert mark.get_xydata().tolist() == [[100.0, pytest.approx(exposed * 1e3)]]


@buckets
def test_try_one_bucket_nothing_overlaps(explorer):
    values = chosen(explorer, "one bucket").values
    found = overlap(values["bucket_bytes"], *link_of(values))
    # 2 (8 - 1) / 8 of 400 MB at 10 GB a second
    assert found.exposed_seconds == pytest.approx(0.070)
    assert len(found.buckets) == 1
    assert "leave 70 ms" in explorer.readout


@buckets
def test_try_slow_messages_small_buckets_lose(explorer):
    values = chosen(explorer, "slow messages").values
    small = overlap(values["bucket_bytes"], *link_of(values)).exposed_seconds
    larger = [overlap(size, *link_of(values)).exposed_seconds for size in (30e6, 50e6, 100e6)]
    assert small > max(larger)
    assert "50 MB would be best here" in explorer.readout


@buckets
def test_try_a_slow_link_no_bucket_size_hides_the_communication(explorer):
    link = link_of(chosen(explorer, "a slow link").values)
    wire_seconds = all_reduce_seconds(PIECES * PIECE_BYTES, RANKS, 0.0, 1 / link[0])
    assert wire_seconds > link[2]
    best = min(overlap(size, *link).exposed_seconds for size in chapter01.BUCKETS)
    assert best > wire_seconds - link[2] > 0.2


@both
def test_every_control_can_be_moved_over_its_whole_range(explorer):
    size = tuple(explorer.figure.get_size_inches())
    for name, widget in explorer.controls.items():
        options = getattr(widget, "options", None) or [widget.min, widget.max]
        for option in options:
            explorer.set(**{name: option[1] if isinstance(option, tuple) else option})
            assert explorer.error is None, (name, option)
            assert tuple(explorer.figure.get_size_inches()) == size


@scaling
def test_the_curves_are_the_cost_models(explorer):
    lines = {line.get_gid(): line for line in explorer.figure.axes[0].lines}
    # ring: 100 ms / (100 ms + 2 * 63 * 10 us + 2 * 63/64 * 100 MB / 10 GB/s)
    seconds = 2 * 63 * 10e-6 + 2 * 63 / 64 * 1e8 / 1e10
    at_64 = dict(zip(*lines["ring"].get_data(), strict=True))[64]
    assert at_64 == pytest.approx(0.1 / (0.1 + seconds))
    assert set(lines) >= {"ring", "tree", "parameter server", "workers"}


@scaling
def test_try_large_gradients_the_ring_scales_and_the_server_does_not(explorer):
    found = efficiency_at(chosen(explorer, "large gradients").values)
    assert found["ring"] > 0.75
    assert found["parameter server"] < 0.10


@scaling
def test_try_small_gradients_the_tree_beats_the_ring(explorer):
    found = efficiency_at(chosen(explorer, "small gradients").values)
    assert found["tree"] > found["ring"]
    assert explorer.readout.endswith("best is the tree.")


@scaling
def test_try_free_latency_the_ring_hardly_falls_from_64_to_1024(explorer):
    values = chosen(explorer, "latency nearly free").values
    at_1024 = efficiency_at(values)["ring"]
    at_64 = efficiency_at({**values, "workers": 64})["ring"]
    assert 0 < at_64 - at_1024 < 0.01


def efficiency_at(values):
    """The efficiency of each algorithm at the explorer's values."""
    found = efficiencies(
        [values["workers"]],
        values["gradient_bytes"],
        values["alpha_us"] * 1e-6,
        1e-9 / values["bandwidth_GB_s"],
        values["compute_ms"] * 1e-3,
    )
    return {name: numbers[0] for name, numbers in found.items()}
