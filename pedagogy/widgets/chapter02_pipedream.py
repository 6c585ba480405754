"""Explorers of chapter 02b: weight versions without a flush, and where to cut a model."""

from __future__ import annotations

from functools import lru_cache

from matplotlib.figure import Figure

from pedagogy.pipeline import Schedule, Simulation, pipedream, pipedream_2bw, simulate
from pedagogy.pipeline.partition import (
    LayerCost,
    ReplicatedStage,
    partition,
    partition_replicated,
    stage_seconds,
)
from pedagogy.pipeline.versions_table import POLICIES, UNSTASHED, VersionTable, versions_used
from pedagogy.plots.partition import CutStage, milliseconds, partition_figure, period
from pedagogy.plots.pipeline import versions_figure
from pedagogy.plots.timeline import Rows
from pedagogy.widgets.controls import choice, menu
from pedagogy.widgets.coupled import Bounds, CoupledExplorer
from pedagogy.widgets.explorer import Explorer, Try
from pedagogy.widgets.layer_profiles import KINDS, PROFILES

VERSIONS_HEIGHT = 5.5


def num_minibatches(ranks: int) -> int:
    """Return how many minibatches the picture shows: three times through the pipeline, or 8."""
    return max(3 * ranks, 8)


def versions_schedule(ranks: int, policy: str) -> Schedule:
    """Return 1F1B without a flush; for 2BW with one update per batch of p micro-batches."""
    if policy == "2BW":
        return pipedream_2bw(ranks, -(-num_minibatches(ranks) // ranks), ranks)
    return pipedream(ranks, num_minibatches(ranks))


@lru_cache(maxsize=64)
def _replayed(ranks: int, policy: str) -> tuple[Simulation, VersionTable]:
    schedule = versions_schedule(ranks, policy)
    return simulate(schedule), versions_used(schedule, policy)


def render_weight_versions(ranks: int, minibatch: int, policy: str) -> Figure:
    """Draw the version that each block uses, and how many versions each rank keeps."""
    simulation, table = _replayed(ranks, policy)
    kept = {
        rank: [(0, 1), *((simulation.end[action], count) for action, count in curve)]
        for rank, curve in enumerate(table.kept)
    }
    mixed = sum(forward != backward for forward, backward in table.used.values())
    below = " (bar below)" if mixed else ""
    return versions_figure(
        simulation,
        table.used,
        kept,
        f"{_met(ranks, minibatch, table)} Versions kept at most, by rank: "
        f"{', '.join(map(str, table.peak))}.",
        title=f"1F1B without a flush, {policy}",
        facts=[f"{mixed} of {len(table.used)} gradients from mixed weights{below}"],
        chosen=minibatch,
        height=VERSIONS_HEIGHT,
        rows=Rows(min(0.6, 2.6 / ranks), min(0.34, 1.4 / ranks)),
    )


def _met(ranks: int, minibatch: int, table: VersionTable) -> str:
    """Say which versions a minibatch meets, rank by rank."""
    pairs = [table.used[stage, minibatch] for stage in range(ranks)]
    forwards, backwards = ([pair[i] for pair in pairs] for i in (0, 1))
    same = f"Minibatch {minibatch} meets, from rank 0 on, versions {_list(forwards)}"
    if forwards == backwards:
        return f"{same}, in F and in B."
    newer = max(backward - forward for forward, backward in pairs)
    return (
        f"{same} in F and {_list(backwards)} in B: up to {newer} update{'s' * (newer > 1)} newer, "
        "a gradient of no function."
    )


def _list(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


def _minibatch_bounds(ranks: int, minibatch: int, policy: str) -> Bounds:
    return Bounds(0, _replayed(ranks, policy)[0].layout.num_microbatches - 1)


def weight_versions_explorer() -> CoupledExplorer:
    """Return the explorer of weight versions: what stashing keeps, and what goes wrong without."""
    return CoupledExplorer(
        render_weight_versions,
        bounds={"minibatch": _minibatch_bounds},
        ranks=(2, 5, 4),
        policy=menu(list(POLICIES), "stashing"),
        minibatch=(0, 11, 5),
        try_this=(
            Try(
                "the mistake",
                "without stashing rank 0 goes back through weights that are 3 updates newer than "
                "those of its forward",
                {"ranks": 4, "policy": UNSTASHED, "minibatch": 5},
            ),
            Try(
                "stashing",
                "F and B agree, but each rank uses another version; 4, 3, 2 and 1 are kept",
                {"ranks": 4, "policy": "stashing", "minibatch": 5},
            ),
            Try(
                "two versions",
                "2BW: one version for all ranks, and none keeps more than 2",
                {"ranks": 4, "policy": "2BW", "minibatch": 8},
            ),
        ),
    )


def cuts_of(model: str, machines: int, bandwidth: float) -> dict[str, list[CutStage]]:
    """Return one machine a stage, PipeDream's plan, and data parallelism alone: {title: stages}.

    bandwidth: bytes a second. A model of L layers has at most L stages.
    """
    layers = PROFILES[model]()
    ends = partition([layer.seconds for layer in layers], min(machines, len(layers)))
    plans = {
        "One machine a stage": [ReplicatedStage(*end, 1) for end in ends],
        "PipeDream's plan": partition_replicated(layers, machines, bandwidth).stages,
        "Data parallelism alone": [ReplicatedStage(0, len(layers), machines)],
    }
    return {title: _timed(layers, stages, bandwidth) for title, stages in plans.items()}


def _timed(layers: list[LayerCost], stages: list[ReplicatedStage], bandwidth: float) -> list:
    """Add what each stage takes, and each boundary: an activation there, its gradient back."""
    sent = [2 * layers[stage.last - 1].activation_bytes / bandwidth for stage in stages[:-1]]
    return [
        CutStage(*stage, stage_seconds(layers, stage, bandwidth), crossing)
        for stage, crossing in zip(stages, [*sent, 0.0], strict=True)
    ]


def render_partitioner(model: str, machines: int, gigabits_per_second: float) -> Figure:
    """Draw a model's layers cut by time alone, by PipeDream's plan, and not at all."""
    cuts = cuts_of(model, machines, gigabits_per_second * 1e9 / 8)
    periods = [milliseconds(period(stages)) for stages in cuts.values()]
    facts = [f"a minibatch every {each} ms" for each in periods]
    straight, planned, replicated = periods
    shares = "-".join(str(stage.replicas) for stage in cuts["PipeDream's plan"])
    finding = (
        f"{model} on {machines} machine{'s' * (machines > 1)} at {gigabits_per_second:g} Gbit/s: "
        f"the plan gives its stages {shares} machines and takes {planned} ms a minibatch; one "
        f"machine a stage takes {straight} ms, data parallelism alone {replicated} ms."
    )
    seconds = [layer.seconds for layer in PROFILES[model]()]
    return partition_figure(seconds, cuts, finding, kinds=KINDS[model], facts=facts)


def partitioner_explorer() -> Explorer:
    """Return the explorer of PipeDream's partitioner: where to cut, and what to replicate."""
    return Explorer(
        render_partitioner,
        model=menu(list(PROFILES), "VGG-16"),
        machines=(2, 8, 8),
        gigabits_per_second=choice([2.0, 4.0, 10.0, 20.0, 40.0, 100.0, 200.0], 10.0),
        try_this=(
            Try(
                "convolutions, then weights",
                "7 machines share the convolutions and 1 holds the dense layers; data parallelism "
                "would take twice as long",
                {"model": "VGG-16", "machines": 8, "gigabits_per_second": 10.0},
            ),
            Try(
                "a heavy head",
                "one layer alone takes 237 ms: no cut of whole layers is faster, replicas are",
                {"model": "GPT with a head", "machines": 8, "gigabits_per_second": 10.0},
            ),
            Try(
                "a fast network",
                "the plan is data parallelism: all machines on one stage, and nothing to cut",
                {"model": "VGG-16", "machines": 8, "gigabits_per_second": 200.0},
            ),
        ),
    )
