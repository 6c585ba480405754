"""The profile of a model: exact in bytes, and without a trace in the training that follows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from pedagogy.pipeline.profile import profile_layers


def test_a_profile_counts_the_bytes_of_outputs_and_of_weights_that_are_trained():
    frozen = nn.Linear(8, 8)
    frozen.requires_grad_(False)
    layers = [nn.Embedding(11, 8), nn.ReLU(inplace=True), frozen, nn.Linear(8, 3, bias=False)]
    profile = profile_layers(layers, torch.randint(11, (5, 4)))
    assert [cost.activation_bytes for cost in profile] == [640, 640, 640, 240]
    assert [cost.weight_bytes for cost in profile] == [352, 0, 0, 96]
    assert all(cost.seconds > 0 for cost in profile)


def test_a_profile_leaves_weights_gradients_averages_and_random_numbers_as_they_were():
    torch.manual_seed(0)
    layers = [nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)]
    inputs = torch.randn(4, 6)
    nn.Sequential(*layers)(inputs).sum().backward()
    model = nn.Sequential(*layers)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = [p.grad.clone() for p in model.parameters()]
    generator, before = torch.get_rng_state(), inputs.clone()
    profile_layers(layers, inputs)
    assert torch.equal(generator, torch.get_rng_state())
    assert torch.equal(inputs, before)
    assert inputs.grad is None
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert torch.equal(parameter.grad, gradient)


class Ticking(torch.autograd.Function):
    """The identity, whose forward and backward each move a clock on."""

    clock, ticks = 0.0, ()

    @staticmethod
    def forward(ctx, x):
        Ticking.clock += Ticking.ticks[0]
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        Ticking.clock += 0.5
        Ticking.ticks = Ticking.ticks[1:]
        return gradient


class TickingLayer(nn.Module):
    def forward(self, x):
        return Ticking.apply(x)


def test_the_fastest_of_the_runs_after_the_first_stands_backward_included(monkeypatch):
    clock = SimpleNamespace(perf_counter=lambda: Ticking.clock)
    monkeypatch.setattr("pedagogy.pipeline.profile.time", clock)
    Ticking.ticks = (1, 9, 3, 4, 100, 8, 7, 5)  # two layers of four runs
    profile = profile_layers([TickingLayer(), TickingLayer()], torch.ones(2))
    assert [cost.seconds for cost in profile] == [3.5, 5.5]


def test_a_layer_that_returns_no_tensor_is_refused_by_name():
    with pytest.raises(ValueError, match=r"layer 1 \(LSTM\) returns tuple"):
        profile_layers([nn.Linear(4, 4), nn.LSTM(4, 4)], torch.randn(2, 3, 4))
    with pytest.raises(ValueError, match="0 layers"):
        profile_layers([], torch.randn(2))
