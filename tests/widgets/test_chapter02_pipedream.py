"""The explorers of chapter 02b draw the versions that the schedule's updates make."""

import pytest

from pedagogy.pipeline.versions_table import POLICIES, versions_used
from pedagogy.plots.labels import labels_of
from pedagogy.plots.lanes import blocks
from pedagogy.plots.partition import period
from pedagogy.widgets.chapter02_pipedream import (
    cuts_of,
    partitioner_explorer,
    versions_schedule,
    weight_versions_explorer,
)
from pedagogy.widgets.layer_profiles import KINDS, PROFILES


@pytest.fixture
def versions():
    made = weight_versions_explorer()
    yield made
    made.close()


def chosen(explorer, label):
    (values,) = [trial.values for trial in explorer.try_this if trial.label == label]
    return explorer.set(**values)


def test_N09_every_policy_is_drawn_at_one_size_for_every_minibatch(versions):
    for policy in POLICIES:
        for ranks in (2, 5):
            versions.set(policy=policy, ranks=ranks, minibatch=0)
            for minibatch in (0, versions.controls["minibatch"].max):
                versions.set(minibatch=minibatch)
                assert versions.error is None, (policy, ranks, minibatch)
                assert tuple(versions.figure.get_size_inches()) == (10.0, 5.5)
                bottom = versions.figure.axes[-1].get_position().y0 * 5.5
                assert bottom > 0.45, "there is room for the time axis"


@pytest.mark.parametrize("policy", POLICIES)
def test_each_block_carries_its_version_and_its_minibatch(versions, policy):
    versions.set(policy=policy, ranks=3)
    lanes = versions.figure.axes[0]
    table = versions_used(versions_schedule(3, policy), policy)
    for kind, look, place in (("F", "forward", 0), ("B", "backward", 1)):
        numbers = sorted((round(y), x, text) for text, (x, y) in labels_of(lanes, f"{look} names"))
        small = sorted(
            (round(y - 0.2), x, int(text))
            for text, (x, y) in labels_of(lanes, f"{kind} micro-batches")
        )
        assert len(numbers) == len(small) == len(table.used)
        for (rank, _, version), (_, _, minibatch) in zip(numbers, small, strict=True):
            assert int(version) == table.used[rank, minibatch][place]


def test_the_chosen_minibatch_is_framed_on_every_rank(versions):
    versions.set(policy="stashing", ranks=4, minibatch=5)
    framed = blocks(versions.figure.axes[0], "chosen")
    assert [rank for rank, _, _ in framed] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_gradients_from_mixed_weights_are_marked_and_no_others(versions):
    versions.set(policy="no stashing", ranks=4)
    marked = blocks(versions.figure.axes[0], "mixed")
    table = versions_used(versions_schedule(4, "no stashing"), "no stashing")
    wrong = [stage for (stage, _), (f, b) in table.used.items() if f != b]
    assert len(marked) == len(wrong) == 33
    versions.set(policy="stashing")
    assert blocks(versions.figure.axes[0], "mixed") == []


def test_C63_try_the_mistake(versions):
    readout = chosen(versions, "the mistake").readout
    assert "versions 2, 3, 4, 5 in F and 5, 5, 5, 5 in B: up to 3 updates newer" in readout
    assert readout.endswith("Versions kept at most, by rank: 1, 1, 1, 1.")


def test_C63_try_stashing(versions):
    readout = chosen(versions, "stashing").readout
    assert "versions 2, 3, 4, 5, in F and in B." in readout
    assert readout.endswith("Versions kept at most, by rank: 4, 3, 2, 1.")


def test_try_two_versions(versions):
    readout = chosen(versions, "two versions").readout
    assert "versions 1, 1, 1, 1, in F and in B." in readout
    assert readout.endswith("Versions kept at most, by rank: 2, 2, 2, 2.")


@pytest.fixture
def partitioner():
    made = partitioner_explorer()
    yield made
    made.close()


def test_every_model_and_machine_is_drawn_at_one_size(partitioner):
    size = tuple(partitioner.figure.get_size_inches())
    bandwidths = partitioner.controls["gigabits_per_second"].options
    for model in PROFILES:
        for machines in (1, 8):
            for bandwidth in (bandwidths[0], bandwidths[-1]):
                partitioner.set(model=model, machines=machines, gigabits_per_second=bandwidth)
                assert partitioner.error is None
                assert tuple(partitioner.figure.get_size_inches()) == size


@pytest.mark.parametrize("model", PROFILES)
@pytest.mark.parametrize("machines", [1, 3, 8])
def test_every_plan_uses_all_layers_once_and_no_machine_twice(model, machines):
    num_layers = len(PROFILES[model]())
    for stages in cuts_of(model, machines, 1.25e9).values():
        assert [s.first for s in stages] == [0, *(s.last for s in stages[:-1])]
        assert stages[-1].last == num_layers
        assert sum(stage.replicas for stage in stages) == machines


@pytest.mark.parametrize("model", PROFILES)
@pytest.mark.parametrize("bandwidth", [0.5e9, 1.25e9, 25e9])
def test_the_plan_is_never_slower_than_its_rivals(model, bandwidth):
    straight, planned, replicated = map(period, cuts_of(model, 8, bandwidth).values())
    assert planned <= min(straight, replicated) * (1 + 1e-12)


def test_a_boundary_sends_an_activation_and_its_gradient():
    stages = cuts_of("even", 2, 1e9)["One machine a stage"]
    assert [stage.seconds for stage in stages] == pytest.approx([0.06, 0.06])
    assert [stage.sent_seconds for stage in stages] == [2 * 10e6 / 1e9, 0.0]


def test_every_layer_is_named_and_dense_layers_are_where_the_weights_are(partitioner):
    for model, kinds in KINDS.items():
        partitioner.set(model=model)
        layers = PROFILES[model]()
        assert [text for text, _ in labels_of(partitioner.figure.axes[-1], "kinds")] == kinds
        assert len(kinds) == len(layers)
    weights = {"conv": 0, "pool": 0, "dense": 0}
    for kind, layer in zip(KINDS["VGG-16"], PROFILES["VGG-16"](), strict=True):
        weights[kind] += layer.weight_bytes
    assert weights["pool"] == 0
    assert weights["dense"] > 8 * weights["conv"]


def test_slow_networks_are_told_in_milliseconds_without_exponents(partitioner):
    readout = partitioner.set(model="GPT with a head", gigabits_per_second=2.0).readout
    assert "at 2 Gbit/s" in readout
    assert "e+" not in readout


def test_try_convolutions_then_weights(partitioner):
    readout = chosen(partitioner, "convolutions, then weights").readout
    assert "gives its stages 7-1 machines and takes 95.7 ms" in readout
    _, planned, replicated = cuts_of("VGG-16", 8, 1.25e9).values()
    assert (planned[0].replicas, planned[1].replicas) == (7, 1)
    dense = len(PROFILES["VGG-16"]()) - 3
    assert planned[1].first <= dense, "the dense layers are all on the one machine"
    assert period(replicated) > 2 * period(planned)


def test_try_a_heavy_head(partitioner):
    readout = chosen(partitioner, "a heavy head").readout
    straight, planned, _ = cuts_of("GPT with a head", 8, 1.25e9).values()
    head = PROFILES["GPT with a head"]()[-1].seconds
    assert period(straight) == head == pytest.approx(0.237, abs=5e-4)
    assert "one machine a stage takes 237 ms" in readout
    assert (planned[-1].last - planned[-1].first, planned[-1].replicas) == (1, 2)
    assert period(planned) < head


def test_try_a_fast_network(partitioner):
    readout = chosen(partitioner, "a fast network").readout
    assert "the plan gives its stages 8 machines" in readout
    _, planned, replicated = cuts_of("VGG-16", 8, 25e9).values()
    assert planned == replicated
