"""`pedagogy bench` compares two functions on the same ranks, pair by pair."""

from __future__ import annotations

import pytest
import torch

from pedagogy.cli import bench, rows_pipeline
from pedagogy.cli.bench import Row, measure
from pedagogy.cli.chapters import CommandError
from pedagogy.ranks import launch


def reduces_once(group):
    x = torch.ones(100_000)
    return lambda: group.all_reduce(x)


def reduces_four_times(group):
    x = torch.ones(100_000)
    return lambda: [group.all_reduce(x) for _ in range(4)]


def test_a_row_counts_bytes_sent_and_held_for_both_sides():
    measured = measure(Row("toy", reduces_once, reduces_four_times), pairs=5)
    assert min(measured.ratio, measured.ours_seconds, measured.twin_seconds) > 0
    assert measured.ours_peak_bytes >= 400_000
    if measured.ours_sent_bytes is not None:
        # two ranks send 400 kB each; other processes may use the loopback interface too
        assert measured.ours_sent_bytes >= 800_000
        assert measured.twin_sent_bytes >= 3_200_000


def test_the_table_has_a_line_for_each_row(monkeypatch, capsys):
    row = Row("all_reduce of 400 kB", reduces_once, reduces_once)
    monkeypatch.setattr(bench, "rows", lambda names: [row])
    bench.print_table([], pairs=1)
    head, line = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["row", "ranks", "ratio"]
    assert line.startswith("all_reduce of 400 kB      2 ")


def test_no_pairs_are_refused():
    with pytest.raises(CommandError, match="at least 1"):
        measure(Row("toy", reduces_once, reduces_once), pairs=0)


def test_the_names_of_the_rows_differ():
    names = [row.name for row in bench.rows()]
    assert len(set(names)) == len(names)


def steps_of_a_pipeline_row(group, row):
    """The weights of this rank's stages after two steps of each side, and before them."""
    rows_pipeline.GPT_SIZES |= {"hidden": 8, "heads": 2, "sequence": 4}
    made, make_stages = [], rows_pipeline._stages

    def noted(*arguments):
        made.append(make_stages(*arguments))
        return made[-1]

    rows_pipeline._stages = noted
    for side in (row.ours, row.twin):
        step = side(group)
        step()
        step()
    made.append(make_stages(group, row.ours.keywords["name"]))
    return [[p.detach() for one in stages.values() for p in one.parameters()] for stages in made]


@pytest.mark.parametrize("row", rows_pipeline.ROWS, ids=lambda row: row.name)
def test_both_sides_of_a_pipeline_row_train_the_same_weights(row):
    for ours, twins, before in launch(steps_of_a_pipeline_row, row.world_size, row):
        torch.testing.assert_close(ours, twins, rtol=1e-5, atol=1e-6)
        moved = [(a - b).abs().max().item() for a, b in zip(ours, before, strict=True)]
        assert max(moved) > 1e-3
