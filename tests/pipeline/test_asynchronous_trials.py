"""Comparisons of asynchronous rules: plain SGD where nothing is late, and when updates happen."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from pedagogy.pipeline import UnstashedStage, partition_replicated, pipedream
from pedagogy.pipeline.asynchronous_alone import (
    Trial,
    curves_of,
    digit_minibatches,
    digit_stages,
    flushed,
    update_times,
)
from pedagogy.pipeline.vgg16 import vgg16_layers
from pedagogy.workloads import digits


def test_updates_happen_when_the_last_stage_to_update_has_done_it():
    assert update_times(flushed(4, 3, 4)) == [21, 42, 63]  # (4 + 3) (1 + 2), three times
    assert update_times(pipedream(4, 3)) == [12, 15, 18]
    assert update_times(pipedream(2, 2), forward=2, backward=2) == [8, 12]


def test_a_trial_with_fresh_gradients_is_plain_sgd_and_starts_alike_under_every_rule():
    trial = Trial(taken=(0, 3, 4), batch=8, num_stages=3)
    model, losses = nn.Sequential(*digit_stages(3, seed=1)), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (x, target) in enumerate(zip(*digit_minibatches(4, 8, seed=1), strict=True)):
        optimizer.zero_grad()
        losses.append(cross_entropy(model(x), target))
        losses[step].backward()
        optimizer.step()
    fresh = trial.run(lambda k, stage: k, 0.1, seed=1)
    late = trial.run(lambda k, stage: max(k - 1, 0), 0.1, seed=1)
    unstashed = trial.run_stages(UnstashedStage, 0.1, seed=1)
    assert list(fresh) == list(unstashed) == [0, 3, 4]
    assert fresh[0] == late[0] == unstashed[0]
    assert len({fresh[4], late[4], unstashed[4]}) == 3
    images, labels, _, _ = digits()
    final = cross_entropy(model(images.flatten(1).double()), labels).item()
    assert fresh[4] == pytest.approx(final, rel=1e-12)


def test_curves_are_drawn_against_updates_or_against_when_they_were_done():
    runs = [{0: 3.0, 1: 2.5, 2: 2.0}, {0: 4.0, 1: 1.5, 2: 1.0}]
    assert curves_of(runs, [0, 2]) == ([0, 2], [[3.0, 2.0], [4.0, 1.0]])
    assert curves_of(runs, [0, 2], clock=[12.0, 15.0])[0] == [0.0, 15.0]


def test_vgg16_has_its_published_weights_and_pipedreams_released_configurations():
    layers = vgg16_layers()
    assert sum(layer.weight_bytes for layer in layers) / 4 == 138_357_544 - 13_416  # less biases
    assert len(layers) == 13 + 5 + 3
    for machines, released in ((4, [3, 1]), (8, [7, 1]), (16, [15, 1])):
        plan = partition_replicated(layers, machines, bandwidth=1.25e9)
        assert [stage.replicas for stage in plan.stages] == released
