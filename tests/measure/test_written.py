"""The operating system's count of what a process wrote."""

from __future__ import annotations

import os
import threading

import pytest

from pedagogy.measure import bytes_written, written, written_by

counted = pytest.mark.skipif(
    not written.COUNTER.exists(), reason="only Linux counts what a process wrote"
)


@counted
def test_what_is_written_to_a_file_is_counted_to_the_byte(tmp_path):
    with (tmp_path / "file").open("wb", buffering=0) as file:
        assert written_by(lambda: file.write(bytes(123_456))) == 123_456


@counted
def test_what_is_read_is_not_counted(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(100_000))
    assert written_by(path.read_bytes) == 0


@counted
def test_other_threads_of_the_process_are_counted():
    reading, writing = os.pipe()
    thread = threading.Thread(target=os.write, args=(writing, bytes(1_000)))
    before = bytes_written()
    thread.start()
    thread.join()
    assert bytes_written() - before == 1_000
    os.close(reading)
    os.close(writing)


def test_where_the_system_does_not_count_nothing_is_claimed(monkeypatch, tmp_path):
    monkeypatch.setattr(written, "COUNTER", tmp_path / "no such file")
    called = []
    assert bytes_written() is None
    assert written_by(lambda: called.append("called")) is None
    assert called == ["called"]
