"""The evidence of chapter 09: bytes that are really there, and errors worked by hand."""

import pytest
import torch
from torch import nn

from pedagogy.compression import files, share_weights
from pedagogy.compression.evidence import (
    convnets,
    errors_by_bits,
    errors_by_rank,
    held_in_training,
    relative_error,
    sections,
    step_seconds,
    train_as,
    with_new_statistics,
    without_channels,
)
from pedagogy.compression.files import Shared, Sparse
from pedagogy.compression.frontier import image_flops
from pedagogy.costs.compression import WAYS, training_bytes
from pedagogy.workloads import MLP, ConvNet

SIZES = (64, 24, 10)
WEIGHTS, BIASES = 64 * 24 + 24 * 10, 24 + 10


def net():
    """A small network, always the same."""
    torch.manual_seed(0)
    return MLP(SIZES)


@pytest.mark.parametrize("with_huffman", [False, True])
def test_the_sections_and_a_header_are_the_file(tmp_path, with_huffman):
    weight = torch.randn(20, 30, generator=torch.Generator().manual_seed(0))
    mask = (weight.abs() > 1).float()
    shared = Shared(mask, *share_weights(weight, 4))
    stored = {"a": shared, "b": Sparse(weight * mask), "c": weight, "d": weight[0]}
    found = sections(stored, with_huffman)
    size = files.save(tmp_path / "net", stored, with_huffman=with_huffman)
    header = int.from_bytes((tmp_path / "net").read_bytes()[:4], "little")
    assert sum(found.values()) + 4 + header == size
    assert found["values"] == 4 * int(mask.sum()) + 4 * 600
    assert (found["codebook"], found["others"]) == (16, 4 * 30)
    assert ("lengths of codes" in found) == with_huffman


@pytest.mark.parametrize("way", WAYS)
def test_training_holds_what_the_closed_form_says_after_backward(way):
    model = net()
    held = held_in_training(model, train_as(model, way), batch=8).after_backward
    values = 16 * 2 if "shared" in way else 0
    assert {**held, "teacher": 0} == training_bytes(way, WEIGHTS, BIASES, values)


def test_the_peak_holds_at_least_as_much_as_the_end_of_backward():
    model = net()
    held = held_in_training(model, train_as(model, "binary"), batch=8)
    assert sum(held.at_peak.values()) >= sum(held.after_backward.values())


def test_a_way_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="no way 'tied': choose one of full, pruned"):
        train_as(net(), "tied")


def test_a_thinner_copy_has_the_strongest_channels_and_the_model_stays_as_it_is():
    model = ConvNet(channels=4)
    thin = without_channels(model, "50 %")
    sizes = [part.weight.shape[:2] for part in thin.features if isinstance(part, nn.Conv2d)]
    assert sizes == [(2, 1), (4, 2), (4, 4)]
    strongest = model.features[0].weight.abs().sum((1, 2, 3)).topk(2).indices.sort().values
    assert torch.equal(thin.features[0].weight, model.features[0].weight[strongest])
    assert thin(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    with pytest.raises(ValueError, match="'60 %' of the channels: choose one of 25 %, 50 %, 75 %"):
        without_channels(model, "60 %")


def test_zeros_leave_the_flops_and_thinner_networks_do_not():
    flops = {name: image_flops(net) for name, net in convnets(4).items()}
    full, sparse, *thinner = flops.values()
    assert sparse[0] == full[0] == full[1]
    assert sparse[1] == pytest.approx(0.1 * full[0], rel=0.03)  # each layer is rounded
    assert list(flops)[1] == "90% zeros"
    assert thinner == sorted(thinner, reverse=True)
    assert thinner[0][0] == thinner[0][1] < full[0]


def test_networks_that_take_turns_are_all_trained_and_timed():
    nets = convnets(4)
    before = {name: net.classifier.weight.detach().clone() for name, net in nets.items()}
    seconds = step_seconds(nets, rounds=1)
    assert list(seconds) == list(nets)
    assert min(seconds.values()) > 0
    assert not any(torch.equal(before[name], nets[name].classifier.weight) for name in nets)


def test_errors_worked_by_hand():
    weight = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    assert relative_error(weight, torch.zeros(2, 2)) == 1
    linear = nn.Linear(2, 2)
    linear.weight = nn.Parameter(weight)
    ranks, errors = errors_by_rank(linear, [1, 2])
    assert ranks == [1, 2]
    assert errors == pytest.approx([3 / 5, 0], abs=1e-6)  # the smaller of two singular values
    found = errors_by_bits(torch.tensor([-3.0, 0.0, 3.0, 1.0]), [1, 2])
    assert found["evenly spaced"] == ([2], [pytest.approx(1 / 19**0.5)])  # 1 becomes 0
    assert found["k-means"][0] == [1, 2]
    assert found["k-means"][1][1] == 0  # four values for four weights


def test_new_statistics_are_those_of_the_images_and_nothing_else_changes():
    torch.manual_seed(0)
    model, images = ConvNet(4).eval(), torch.randn(30, 1, 8, 8)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    new = with_new_statistics(model, images)
    seen = model.features[0](images)
    torch.testing.assert_close(new.features[1].running_mean, seen.mean((0, 2, 3)))
    torch.testing.assert_close(new.features[1].running_var, seen.var((0, 2, 3)))
    for name, parameter in new.named_parameters():
        assert torch.equal(parameter, before[name])
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not new.training
