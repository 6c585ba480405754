"""What is measured happens in the order that the simulation says; no clock is read here."""

import pytest

from pedagogy.offload import OffloadedModule, simulate_offload, transfers
from pedagogy.ranks import Link
from tests.offload.training import batches, bytes_of, tied_gpt

N = 3
SECONDS = 0.012  # of each use and of each copy


@pytest.fixture(scope="module", params=[0, 1, 2])
def run(request):
    """One step over a slow link: prefetch, and the uses and copies in their order."""
    model = tied_gpt()
    link = Link(bytes_of(model.blocks[0]) / SECONDS)
    module = OffloadedModule(model, link, request.param, compute_seconds=[SECONDS] * 2 * N)
    model.loss(*batches(model)[0]).backward()
    events = list(module.trace)
    uses = [event for event in events if event.rank == 0]
    parts = [event for event in events if event.kind == "to_device"]
    whole = len(list(model.blocks[0].parameters()))
    copies = [parts[i : i + whole] for i in range(0, len(parts), whole)]
    return request.param, uses, copies


def test_the_order_of_uses_and_copies_is_the_simulations(run):
    prefetch, uses, copies = run
    needed = transfers(N, prefetch)
    found = simulate_offload([1] * 2 * N, [int(need) for need in needed], prefetch)
    layers = [*range(N), *reversed(range(N))]
    in_simulation = [event.name for event in found.events if event.kind == "to_device"]
    assert [event.name for event in uses] == [str(layer) for layer in layers]
    assert [event.kind for event in uses] == ["F"] * N + ["B"] * N
    for parts, use in zip(copies, in_simulation, strict=True):
        assert {part.name for part in parts} == {f"layer {layers[int(use)]}"}


def test_no_layer_starts_before_its_copy_ended_nor_a_copy_before_there_is_room(run):
    prefetch, uses, copies = run
    needed = [use for use, need in enumerate(transfers(N, prefetch)) if need]
    for use, parts in zip(needed, copies, strict=True):
        assert parts[-1].end <= uses[use].start
        room = use - 1 - prefetch
        assert room < 0 or uses[room].end <= parts[0].start


def test_uses_and_copies_overlap_exactly_where_there_is_prefetch(run):
    prefetch, uses, copies = run
    parts = [part for copy in copies for part in copy]
    overlap = any(p.start < use.end and use.start < p.end for p in parts for use in uses)
    assert overlap == (prefetch > 0)


def test_the_link_carries_one_copy_at_a_time(run):
    _, _, copies = run
    parts = [part for copy in copies for part in copy]
    assert all(a.end >= a.start for a in parts)
    assert [p.start for p in parts] == sorted(p.start for p in parts)
    assert [p.end for p in parts] == sorted(p.end for p in parts)
