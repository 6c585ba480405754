"""The map of the book is complete, and agrees with the closed forms where there are any."""

from __future__ import annotations

from collections import Counter

import pytest

from pedagogy.costs import memory
from pedagogy.costs.techniques import EFFECTS, EXACT, KINDS, MANY_RANKS, ONE_DEVICE, TECHNIQUES


def named(name):
    """The row of that name."""
    (row,) = [one for one in TECHNIQUES if one.name == name]
    return row


def compared(before: dict, after: dict) -> dict:
    """For each kind, whether `after` holds less, the same or more."""
    words = {True: "less", False: "more"}
    return {
        kind: "same" if after[kind] == before[kind] else words[after[kind] < before[kind]]
        for kind in before
    }


@pytest.mark.parametrize("row", TECHNIQUES, ids=lambda row: row.name)
def test_each_row_uses_the_words_of_the_map(row):
    assert row.exact in EXACT
    assert tuple(row.effects()) == KINDS
    assert set(row.effects().values()) <= set(EFFECTS)
    assert row.cuts
    assert row.price


def test_each_track_holds_its_chapters_in_order():
    chapters = {track: [] for track in (ONE_DEVICE, MANY_RANKS)}
    for row in TECHNIQUES:
        chapters[row.track].append(row.chapter)
    assert chapters[ONE_DEVICE] == ["05", "06", "07", "08", "09", "10"]
    assert chapters[MANY_RANKS] == ["01", "01", "02a", "02b", "03", "03", "04", "11"]
    assert max(Counter(row.name for row in TECHNIQUES).values()) == 1


def test_mixed_precision_changes_the_states_as_the_formula_says():
    states = {precision: memory.model_states(1000, precision) for precision in ("fp32", "mixed")}
    effects = named("mixed precision").effects()
    assert compared(states["fp32"], states["mixed"]).items() <= effects.items()


def test_a_smaller_batch_changes_the_activations_and_no_state():
    one, four = (memory.gpt_activation_bytes(2, 64, 4, 64, batch) for batch in (1, 4))
    assert one < four
    effects = named("gradient accumulation").effects()
    assert [effects[kind] for kind in KINDS] == ["same", "same", "same", "less", "same"]


def test_a_shard_of_the_states_is_less_of_each_and_of_no_activation():
    """ZeRO is data parallelism with sharded states: more ranks, less time for the same texts."""
    effects = named("ZeRO").effects()
    assert [effects[kind] for kind in KINDS] == ["less", "less", "less", "same", "less"]
    assert effects["seconds"] == named("data parallelism").effects()["seconds"]


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_pipedreams_first_stage_saves_neither_weights_nor_activations(stages):
    """Its p versions of 1/p of the weights, and p micro-batches in flight through 1/p of layers."""
    layers = 8
    kept = memory.gpt_activation_terms(layers, 64, 4, 64, batch=1)
    kept.pop("output")
    part = memory.gpt_activation_terms(layers // stages, 64, 4, 64, batch=stages)
    part.pop("output")
    whole = 12 * layers * 64**2
    versions = stages * (12 * (layers // stages) * 64**2)
    found = compared(
        {"parameters": whole, "activations": sum(kept.values())},
        {"parameters": versions, "activations": sum(part.values())},
    )
    assert found.items() <= named("PipeDream").effects().items()
    assert named("PipeDream").price == "weight versions"
