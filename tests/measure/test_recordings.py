"""A recording says how it was made, and comes back as it was written."""

import torch

from pedagogy.measure import mean_of_each, read_recording, write_recording


def test_a_recording_is_read_as_it_was_written(tmp_path, monkeypatch):
    package = tmp_path / "recordings_of_a_test"
    package.mkdir()
    (package / "__init__.py").touch()
    write_recording(package / "run.csv", "f(x)", [["a, b", 3, 0.12345], ["c", 0, float("nan")]])
    monkeypatch.syspath_prepend(tmp_path)
    found = read_recording("recordings_of_a_test", "run.csv")
    assert found.provenance.startswith(f"f(x); one thread; torch {torch.__version__}, ")
    assert found.rows == [["a, b", "3", "0.1235"], ["c", "0", "nan"]]


def test_means_are_taken_of_neighbours():
    assert mean_of_each(torch.tensor([1.0, 3.0, 5.0, 7.0]), 2).tolist() == [2.0, 6.0]
