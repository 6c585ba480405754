"""The bytes that events claim, against what the operating system counted.

Two independent counters: what each rank's process wrote (its own /proc entry, so each rank is held
to its own events), and what passed the loopback interface (the sum over ranks).
"""

from __future__ import annotations

import sys
from pathlib import Path

import cloudpickle
import pytest
import torch

from pedagogy.measure import bytes_written
from pedagogy.ranks import launch

cloudpickle.register_pickle_by_value(sys.modules[__name__])

NUMEL = 600_000
KINDS = [
    "all_reduce",
    "all_gather",
    "broadcast",
    "reduce_scatter",
    "all_to_all",
    "send",
    "exchange",
]

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/io").exists(), reason="only Linux counts what a process wrote"
)


def on_loopback() -> int:
    """Bytes that passed the loopback interface so far."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counts = line.strip().partition(":")
        if name == "lo":
            return int(counts.split()[8])
    return 0


def do(group, kind: str) -> None:
    x = torch.ones(NUMEL)
    parts = list(torch.ones(NUMEL).chunk(group.size))
    if kind == "all_reduce":
        group.all_reduce_(x)
    elif kind == "broadcast":
        group.broadcast_(x, source=group.size - 1)
    elif kind == "send" and group.rank < 2:
        group.send(x, 1) if group.rank == 0 else group.recv(0)
    elif kind == "exchange":
        right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
        group.exchange([(x, right)], [(torch.empty(NUMEL), left)])
    elif kind == "all_gather":
        group.all_gather(x)
    elif kind in ("reduce_scatter", "all_to_all"):
        getattr(group, kind)(parts)


def measure(group, kind: str) -> tuple[int, int, int]:
    """(bytes of the events, bytes written, bytes on the interface) of one operation."""
    group.barrier()
    interface = on_loopback()
    group.barrier()  # nobody sends before everybody has looked
    group.events.clear()
    before = bytes_written()
    do(group, kind)
    wrote = bytes_written() - before
    claimed = sum(event.nbytes for event in group.events)
    group.barrier()
    return claimed, wrote, on_loopback() - interface


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_events_claim_what_each_rank_wrote(size):
    def worker(group):
        return {kind: measure(group, kind)[:2] for kind in KINDS}

    for rank, counted in enumerate(launch(worker, size)):
        for kind, (claimed, wrote) in counted.items():
            slack = 4_000 + 0.01 * claimed  # gloo's own frames, headers and digests
            assert 0 <= wrote - claimed < slack, (kind, rank, claimed, wrote)


def test_the_sum_of_the_events_is_what_the_interface_counted():
    def worker(group, kind):
        return measure(group, kind)

    for kind in ("all_reduce", "reduce_scatter"):
        ratios = []
        for _ in range(3):  # the interface also carries what other programs send
            run = launch(worker, 4, kind)
            ratios.append(run[0][2] / sum(claimed for claimed, _, _ in run))
        assert 1 <= min(ratios) < 1.05


def test_closed_forms_of_the_bytes():
    def worker(group):
        return {kind: measure(group, kind)[0] for kind in KINDS}

    full = 4 * NUMEL
    for rank, claimed in enumerate(launch(worker, 4)):
        assert claimed["all_reduce"] == 2 * 3 / 4 * full
        assert claimed["all_gather"] == 3 * full
        assert claimed["reduce_scatter"] == claimed["all_to_all"] == 3 / 4 * full
        assert claimed["exchange"] == full
        assert claimed["send"] == (full if rank == 0 else 0)
