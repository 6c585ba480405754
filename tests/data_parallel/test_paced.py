"""Paced backward: every layer's slot is as long as asked, and the gradients are the same."""

import sys

import cloudpickle
import torch

from pedagogy.data_parallel import DataParallel
from pedagogy.data_parallel.paced import pace_backward
from pedagogy.ranks import Pace, launch
from pedagogy.workloads import MLP

cloudpickle.register_pickle_by_value(sys.modules[__name__])

UNIT = 0.02


def step(group, paced):
    torch.manual_seed(0)
    model = MLP((8, 6, 5, 3))
    if paced:
        pace_backward(group, model.layers[::2], Pace(UNIT))
    wrapped = DataParallel(group, model, bucket_bytes=1)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(group.rank))
    wrapped(x).square().mean().backward()
    return [parameter.grad for parameter in model.parameters()]


def test_the_layers_run_from_the_last_to_the_first_for_a_unit_each():
    spans = launch(step, 2, True).trace.of("B", rank=1)
    assert [span.name for span in spans] == ["B2", "B1", "B0"]
    assert all(span.end - span.start >= UNIT for span in spans)


def test_the_first_all_reduce_starts_before_the_first_layers_slot_ends():
    trace = launch(step, 2, True).trace
    for rank in range(2):
        end = trace.of("B", rank=rank, name="B0")[0].end
        assert any(event.start < end for event in trace.of("all_reduce", rank=rank))


def test_the_gradients_are_those_of_the_run_that_is_not_paced():
    paced, plain = launch(step, 2, True), launch(step, 2, False)
    for mine, right in zip(paced, plain, strict=True):
        torch.testing.assert_close(mine, right)
