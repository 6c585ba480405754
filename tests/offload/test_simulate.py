"""The recursion against a simulation that moves a clock, and timelines drawn by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pedagogy.offload import simulate_offload, transfers

SECONDS = st.integers(0, 9)
LAYERS = st.lists(st.tuples(SECONDS, SECONDS), max_size=8)
DEPTHS = st.integers(0, 9)


def clock(compute, transfer, prefetch):
    """One tick at a time: a device that has room for 1 + prefetch layers, and a link.

    Returns when each layer ends. A place is taken when a copy starts, and given back when its
    layer has run. What takes no time happens between two ticks.
    """
    n = len(compute)
    copying = running = 0  # which is next, or under way, on the link and on the device
    copy_left = run_left = None  # None: not started
    ends = []
    for now in range(sum(compute) + sum(transfer) + 1):
        moved = True
        while moved:
            moved = False
            if copy_left == 0:
                copying, copy_left, moved = copying + 1, None, True
            if copying < n and copy_left is None and copying - running < prefetch + 1:
                copy_left, moved = transfer[copying], True
            if run_left == 0:
                running, run_left, moved = running + 1, None, True
                ends.append(now)
            if running < copying and run_left is None:
                run_left, moved = compute[running], True
        copy_left = None if copy_left is None else copy_left - 1
        run_left = None if run_left is None else run_left - 1
    return ends


@given(LAYERS, DEPTHS)
def test_layers_end_when_a_clock_says_so(layers, prefetch):
    compute, transfer = [c for c, _ in layers], [t for _, t in layers]
    found = simulate_offload(compute, transfer, prefetch)
    ends = [event.end for event in found.events if event.kind == "F"]
    assert ends == clock(compute, transfer, prefetch)
    assert found.makespan == max(ends, default=0)
    assert found.stall == found.makespan - sum(compute)


@given(LAYERS, DEPTHS)
def test_more_prefetch_never_costs_time_and_nothing_beats_the_busier_of_the_two(layers, prefetch):
    compute, transfer = [c for c, _ in layers], [t for _, t in layers]
    spans = [simulate_offload(compute, transfer, k).makespan for k in (0, prefetch, prefetch + 1)]
    assert spans[0] == sum(compute) + sum(transfer)
    assert spans[0] >= spans[1] >= spans[2]
    first = transfer[0] if layers else 0
    assert spans[2] >= max(sum(compute) + first, sum(transfer))


DRAWN = {  # one character a second: a layer's number, a dot for waiting; device, then link
    0: (".000000.1....2", "0......1.2222."),
    1: (".0000001...2", "01.....2222."),
    2: (".00000012", "012222..."),
}


@pytest.mark.parametrize("prefetch", DRAWN)
def test_an_expensive_layer_pays_for_a_copy_two_layers_ahead_as_drawn_by_hand(prefetch):
    found = simulate_offload([6, 1, 1], [1, 1, 4], prefetch)
    lines = [["."] * int(found.makespan) for _ in range(2)]
    for event in found.events:
        line = lines[event.rank]
        line[int(event.start) : int(event.end)] = event.name * int(event.end - event.start)
    assert tuple("".join(line) for line in lines) == DRAWN[prefetch]


def test_a_layer_that_is_there_has_no_copy_among_the_events():
    found = simulate_offload([1, 1], [0, 1], 1)
    assert [event.name for event in found.events if event.kind == "to_device"] == ["1"]


def test_nothing_takes_no_time():
    assert simulate_offload([], [], 3) == (0.0, 0.0, ())
    assert simulate_offload([], [], 3).stall_fraction == 0


def test_the_stall_fraction_is_of_the_whole():
    assert simulate_offload([3], [1], 0).stall_fraction == 1 / 4


def test_bad_lists_are_refused_with_their_numbers():
    with pytest.raises(ValueError, match="2 layers compute and 1 are copied"):
        simulate_offload([1, 2], [1], 0)
    for arguments in (([1], [1], -1), ([-1], [1], 0), ([1], [-1], 0)):
        with pytest.raises(ValueError, match="must be 0 or more"):
            simulate_offload(*arguments)
    for arguments in ((0, 0), (1, -1)):
        with pytest.raises(ValueError, match="at least 1 and 0"):
            transfers(*arguments)


HELD = {  # 3 layers, uses 0 1 2 2 1 0; C: its copy is made
    0: "CCC.CC",
    1: "CCC.CC",  # when 2 runs forward, 2 comes next: no room for 1
    2: "CCC..C",
    3: "CCC..C",
    4: "CCC...",
}


@pytest.mark.parametrize("prefetch", HELD)
def test_copies_of_a_step_as_counted_by_hand(prefetch):
    drawn = "".join("C" if needed else "." for needed in transfers(3, prefetch))
    assert drawn == HELD[prefetch]
