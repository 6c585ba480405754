"""Traces: sorted, filtered, exported; paced spans; what a hang report reads."""

from __future__ import annotations

import json
import sys
import time

import cloudpickle
import pytest
import torch

from pedagogy.ranks import Event, Pace, Trace, launch
from pedagogy.ranks.watch import Need, Wait, blocked_by

cloudpickle.register_pickle_by_value(sys.modules[__name__])

EVENTS = [
    Event(1, "send", "", 2.0, 2.5, 100, (0,)),
    Event(0, "forward", "F0", 0.0, 1.0),
    Event(0, "send", "", 1.0, 1.5, 40, (1,)),
]


def test_a_trace_is_sorted_and_filtered():
    trace = Trace(EVENTS)
    assert [event.start for event in trace] == [0.0, 1.0, 2.0]
    assert [event.rank for event in trace.of(kind="send")] == [0, 1]
    assert trace.of(name="F0")[0].kind == "forward"
    assert (trace.bytes_sent(), trace.bytes_sent(rank=0), trace.bytes_sent(kind="forward")) == (
        140,
        40,
        0,
    )
    assert isinstance(trace[1:], Trace)
    assert len(trace[1:]) == 2


def test_a_trace_since_a_moment_starts_its_clock_there():
    later = Trace(EVENTS).since(1.0)
    assert [(event.start, event.end) for event in later] == [(0.0, 0.5), (1.0, 1.5)]
    assert [event.nbytes for event in later] == [40, 100]


def test_a_trace_opens_in_perfetto(tmp_path):
    """The fields that the trace event format requires: phase, microseconds, process, thread."""
    path = Trace(EVENTS).save_perfetto(tmp_path / "trace.json")
    events = json.loads(path.read_text())["traceEvents"]
    names = [e["args"]["name"] for e in events if e["ph"] == "M"]
    assert names == ["rank 0", "rank 1"]
    spans = [e for e in events if e["ph"] == "X"]
    assert [(e["name"], e["ts"], e["dur"], e["tid"]) for e in spans] == [
        ("F0", 0.0, 1e6, 0),
        ("send", 1e6, 0.5e6, 0),
        ("send", 2e6, 0.5e6, 1),
    ]


def test_spans_and_messages_of_all_ranks_share_a_clock():
    def worker(group):
        with group.span("compute", "sleep"):
            time.sleep(0.05)
        if group.rank == 0:
            group.send(torch.ones(10), 1)
        else:
            group.recv(0)

    trace = launch(worker, 2).trace
    sent, received = trace.of("send")[0], trace.of("recv")[0]
    assert sent.nbytes == 40
    assert received.end > sent.start  # not before it was sent, on the common clock
    for rank in (0, 1):
        span = trace.of("compute", rank=rank)[0]
        assert span.end - span.start >= 0.05
        assert span.start >= 0


def test_pace_pads_a_span_and_counts_those_that_were_too_long():
    pace = Pace(0.02)
    begin = time.perf_counter()
    with pace.span(units=2):
        pass
    assert time.perf_counter() - begin >= 0.04
    assert pace.late == 0
    with pace.span(units=0.1):
        time.sleep(0.01)
    assert pace.late == 1
    with pytest.raises(ValueError, match="-1"):
        Pace(-1)


def wait_for(*needs: Need, any_peer: bool = False) -> Wait:
    return Wait("recv", tuple(need.peer for need in needs), 0.0, needs, any_peer, 0)


def test_a_wait_is_blocked_exactly_while_a_need_is_not_met():
    first, second = Need(1, ("send", "world", (1, 0)), 2), Need(2, ("send", "world", (2, 0)), 1)
    one_sent = {1: {first.key: 1}}
    both_sent = {1: {first.key: 2}}
    assert blocked_by(wait_for(first), one_sent) == (1,)
    assert blocked_by(wait_for(first), both_sent) == ()
    assert blocked_by(wait_for(first, second), both_sent) == (2,)
    assert blocked_by(wait_for(first, second, any_peer=True), both_sent) == ()
    assert blocked_by(wait_for(first, second, any_peer=True), one_sent) == (1, 2)
