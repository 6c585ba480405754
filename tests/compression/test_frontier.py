"""The frontier: fair to all methods, measured on what was really written, recorded."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from pedagogy.compression import files, magnitude_mask, sign, to_integers
from pedagogy.compression.course import Course
from pedagogy.compression.files import Packed, Shared, Sparse
from pedagogy.compression.frontier import SEEDS, image_flops, record, recorded_frontier, run
from pedagogy.compression.methods import METHODS
from pedagogy.measure import count_flops
from pedagogy.workloads import MLP, ConvNet, digits_batch

BY_NAME = {(m.method, m.setting, m.network): m for m in METHODS}


# What a file can hold


def through_a_file(tmp_path, value, **options):
    files.save(tmp_path / "one", {"weight": value}, **options)
    return files.load(tmp_path / "one")["weight"]


@pytest.mark.parametrize("bits", [2, 3, 4, 8, 16])
def test_integers_come_back_from_their_bits(tmp_path, bits):
    torch.manual_seed(bits)
    integers, scale = to_integers(torch.randn(5, 7, 3), bits)
    packed = Packed(integers, scale, bits)
    assert torch.equal(through_a_file(tmp_path, packed), packed.weight())
    assert files.section_bytes(packed) == {"integers": -(-105 * bits // 8), "scale": 4}


def test_signs_come_back_from_one_bit_with_a_scale_for_each_output(tmp_path):
    weight = torch.tensor([[0.5, -0.25, 0.0], [-3.0, 2.0, 1.0]])
    packed = Packed(sign(weight), weight.abs().mean(1, keepdim=True), 1)
    expected = torch.tensor([[0.25, -0.25, 0.25], [-2.0, 2.0, 2.0]])
    assert torch.equal(through_a_file(tmp_path, packed), expected)
    assert files.section_bytes(packed) == {"integers": 1, "scale": 8}


@pytest.mark.parametrize("with_huffman", [False, True])
@pytest.mark.parametrize("sparsity", [0.0, 0.9, 1.0])
def test_a_pruned_weight_comes_back_with_its_zeros(tmp_path, sparsity, with_huffman):
    torch.manual_seed(0)
    weight = torch.randn(20, 30)
    weight *= magnitude_mask(weight, sparsity)
    again = through_a_file(tmp_path, Sparse(weight), with_huffman=with_huffman)
    assert torch.equal(again, weight)
    sections = files.section_bytes(Sparse(weight), with_huffman=with_huffman)
    assert sections["values"] == 4 * round((1 - sparsity) * 600)
    assert ("gaps" in sections) == (sparsity > 0)


@pytest.mark.parametrize("with_huffman", [False, True])
def test_a_shared_weight_without_zeros_has_no_gaps(tmp_path, with_huffman):
    indices = torch.arange(24).view(4, 6) % 3
    shared = Shared(torch.ones(4, 6), torch.tensor([0.0, -1.0, 2.0]), indices)
    assert "gaps" not in files.section_bytes(shared, with_huffman=with_huffman)
    again = through_a_file(tmp_path, shared, with_huffman=with_huffman)
    assert torch.equal(again, shared.weight())


# A course that is the same for all


def test_a_course_draws_batch_i_at_step_i_and_begins_its_halves_with_a_new_adam():
    course = Course(seed=3, steps=6)
    model = course.start("MLP")
    BY_NAME["full", "MLP", "MLP"].train(model, course)
    torch.manual_seed(3)
    by_hand = MLP()
    for half in (range(3), range(3, 6)):
        optimizer = torch.optim.Adam(by_hand.parameters(), lr=1e-3)
        for step in half:
            optimizer.zero_grad()
            images, labels = digits_batch(64, 3, step)
            functional.cross_entropy(by_hand(images), labels).backward()
            optimizer.step()
    for one, other in zip(model.parameters(), by_hand.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", BY_NAME, ids=" ".join)
def test_the_file_of_every_method_holds_the_network_that_was_trained(tmp_path, name):
    course = Course(seed=0, steps=10)
    network, stored, training, with_huffman = BY_NAME[name].train(course.start(name[2]), course)
    num_bytes = files.save(tmp_path / "network", stored, with_huffman=with_huffman)
    assert num_bytes == (tmp_path / "network").stat().st_size
    again = files.load(tmp_path / "network")
    trained = network.state_dict()
    assert list(again) == list(trained)
    assert all(torch.equal(again[key], trained[key]) for key in trained)
    assert sum(training.values()) > 0


def test_pruned_weights_stay_away_and_channels_are_gone():
    zeros = {}
    for setting in ("80 %", "95 %, in 5 steps"):
        course = Course(seed=0, steps=20)
        method = BY_NAME["connections pruned", setting, "MLP"]
        network = method.train(course.start("MLP"), course).network
        zeros[setting] = [
            round((m.weight == 0).float().mean().item(), 2) for m in network.layers[::2]
        ]
    assert zeros == {"80 %": [0.8] * 3, "95 %, in 5 steps": [0.95] * 3}
    course = Course(seed=0, steps=2)
    network = BY_NAME["channels pruned", "75 %", "ConvNet"].train(course.start("ConvNet"), course)[
        0
    ]
    shapes = [tuple(m.weight.shape) for m in network.modules() if isinstance(m, nn.Conv2d)][:2]
    assert shapes == [(4, 1, 3, 3), (8, 4, 3, 3)]
    assert network.classifier.weight.shape == (10, 8)


# FLOPs and bytes


@pytest.mark.parametrize(
    "model", [MLP(), ConvNet(), MLP((64, 5, 10))], ids=["mlp", "conv", "small"]
)
def test_flops_of_a_digit_are_those_that_torch_counts(model):
    model.eval()
    counted = count_flops(model, torch.zeros(1, 1, 8, 8))
    assert image_flops(model) == (counted, counted)


def test_zeros_save_flops_only_in_the_other_column():
    model = MLP((64, 20, 10))
    with torch.no_grad():
        model.layers[0].weight[:5] = 0
    assert image_flops(model) == (2 * (64 * 20 + 200), 2 * (64 * 15 + 200))


def test_smaller_networks_train_in_16_bytes_for_each_number_left():
    for name in [("channels pruned", "50 %", "ConvNet"), ("low rank", "8", "MLP")]:
        course = Course(seed=0, steps=2)
        network, _, training, _ = BY_NAME[name].train(course.start(name[2]), course)
        assert sum(training.values()) == 16 * sum(p.numel() for p in network.parameters())


def test_a_run_is_told_by_its_file(tmp_path):
    """Whatever the seed, the same length: where nothing is Huffman coded, nor pruned."""
    rows = [run(BY_NAME["binary", "1 bit", "MLP"], seed, steps=2) for seed in (0, 1)]
    bits = 64 * 300 + 300 * 100 + 100 * 10
    numbers = bits // 8 + 2 * 4 * (300 + 100 + 10)  # a scale and a bias for each output
    assert rows[0].file_bytes == rows[1].file_bytes
    assert numbers < rows[0].file_bytes < numbers + 800  # the header
    assert rows[0].accuracy != rows[1].accuracy


# The recorded runs


def test_the_recorded_runs_are_those_of_the_function(tmp_path):
    """The whole run of the smallest network; the others have five seeds, in the order given."""
    points = recorded_frontier()
    assert [tuple(point[:3]) for point in points] == list(BY_NAME)
    assert {len(point.accuracies) for point in points} == {len(SEEDS)}
    method = BY_NAME["student", "alone", "MLP"]
    record(tmp_path / "again.csv", [method], [0])
    first, line = (tmp_path / "again.csv").read_text().splitlines()
    assert first.startswith("# pedagogy.compression.frontier.run(method, seed, steps=1000), seeds")
    *name, seed, found, _, size, flops, _, held = line.split(",")
    point = points[list(BY_NAME).index(tuple(name))]
    assert seed == "0"
    assert float(found) == pytest.approx(point.accuracies[0], abs=0.02)
    assert [int(size), int(flops), int(held)] == [
        point.file_bytes,
        point.flops,
        point.training_bytes,
    ]


def mean(numbers):
    return sum(numbers) / len(numbers)


def test_it_hurts_where_nearly_all_connections_kernels_or_channels_go_and_nowhere_else():
    points = {tuple(point[:3]): point for point in recorded_frontier()}
    full = {n: mean(points["full", n, n].accuracies) for n in ("MLP", "ConvNet")}
    worse = {
        name[:2]: full[name[2]] - mean(point.accuracies) > 0.02 for name, point in points.items()
    }
    assert {name for name in worse if worse[name]} == {
        ("connections pruned", "95 %"),
        ("connections pruned", "95 %, in 5 steps"),
        ("kernels pruned", "75 %"),
        ("channels pruned", "75 %"),
    }


def test_a_small_network_trained_as_such_is_on_the_frontier():
    """As accurate as Deep Compression's file of the same size, with a 21st of its FLOPs."""
    points = {tuple(point[:3]): point for point in recorded_frontier()}
    student = points["student", "alone", "MLP"]
    deep = points["Deep Compression", "90 %, 16 values", "MLP"]
    assert mean(student.accuracies) > mean(deep.accuracies) - 0.005
    assert student.file_bytes < 1.3 * deep.file_bytes
    assert deep.flops == 100_400
    assert student.flops == 2 * (64 * 32 + 32 * 10)
    assert mean(points["student", "distilled", "MLP"].accuracies) < mean(student.accuracies)


def test_a_course_of_another_network_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="'GPT': choose one of MLP, ConvNet"):
        Course(seed=0, steps=2).start("GPT")
