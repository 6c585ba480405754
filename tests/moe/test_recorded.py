"""The recorded run is what its function gives, as far as a test can wait for it."""

import torch

from pedagogy.moe.recorded import POINT_STEPS, RECORDED_STEPS, record, recorded_run


def test_the_recorded_run_has_three_seeds_and_begins_as_a_new_one(tmp_path):
    recorded = recorded_run()
    assert {name: tuple(run.shape) for name, run in recorded.items()} == dict.fromkeys(
        ("dense", "8 experts"), (3, RECORDED_STEPS // POINT_STEPS)
    )
    record(tmp_path / "again.csv", seeds=[0], steps=POINT_STEPS)
    first, *lines = (tmp_path / "again.csv").read_text().splitlines()
    assert first.startswith("# pedagogy.moe.equal_compute(seeds=[0], steps=100), mean loss of")
    for line, (name, run) in zip(lines, recorded.items(), strict=True):
        found, seed, loss = line.split(",")
        assert (found, seed) == (name, "0")
        torch.testing.assert_close(float(loss), run[0, 0].item(), rtol=0, atol=0.05)
