"""The production twin: DTensor's `parallelize_module`, on the same weights, beside ours."""

import sys

import cloudpickle
import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from pedagogy.cli import rows_tensor
from pedagogy.ranks import launch
from pedagogy.tensor_parallel import SequenceParallelBlock, sum_replicated_gradients
from pedagogy.workloads import Block
from tests.tensor_parallel.cutting import BLOCKS, random

cloudpickle.register_pickle_by_value(sys.modules[__name__])

HIDDEN, HEADS, SEQUENCE, BATCH = 16, 4, 8, 2


def megatron_plan():
    """Whole activations between the halves."""
    columns = ("attention.query", "attention.key", "attention.value", "feed_forward.expand")
    rows = ("attention.project", "feed_forward.project")
    return {name: ColwiseParallel() for name in columns} | {
        name: RowwiseParallel() for name in rows
    }


def sequence_plan():
    """Activations between the halves are cut along the sequence, dimension 1."""
    plan = megatron_plan()
    gathered = {"input_layouts": Shard(1), "desired_input_layouts": Replicate()}
    for half in ("attention", "feed_forward"):
        plan[f"{half}_norm"] = SequenceParallel(sequence_dim=1)
        plan[half] = PrepareModuleInput(**gathered)
        plan[f"{half}.project"] = RowwiseParallel(output_layouts=Shard(1))
    return plan


def make_block():
    torch.manual_seed(0)
    return Block(HIDDEN, HEADS, SEQUENCE).double()


def dtensor_block(group, plan):
    """The layer, cut by DTensor; the number of heads on a rank is for us to set."""
    block = make_block()
    mesh = DeviceMesh.from_group(group.process_group, "cpu")
    parallelize_module(block, mesh, plan)
    block.attention.heads //= group.size
    return block


def local(tensor):
    """This rank's shard; a replicated tensor whole, its partial sums added."""
    if not isinstance(tensor, DTensor):
        return tensor
    if any(placement.is_partial() for placement in tensor.placements):
        tensor = tensor.full_tensor()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def train(group, layer, cuts_sequence, finish):
    """Three steps: outputs, gradients of the input and of the parameters; then the weights."""
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    found = []
    for step in range(3):
        x, gradient = random(step, BATCH, SEQUENCE, HIDDEN), random(9, BATCH, SEQUENCE, HIDDEN)
        if cuts_sequence:
            x, gradient = (t.chunk(group.size, 1)[group.rank].contiguous() for t in (x, gradient))
        x.requires_grad_()
        y = layer(x)
        y.backward(0.02 * gradient)
        finish()
        gradients = {name: local(p.grad).clone() for name, p in layer.named_parameters()}
        found.append((y.detach(), x.grad, gradients))
        optimizer.step()
        optimizer.zero_grad()
    return found, {name: local(p.detach()).clone() for name, p in layer.named_parameters()}


def train_both(group, block):
    """Ours, and DTensor's with the same plan."""
    cuts = issubclass(block, SequenceParallelBlock)
    ours = block(group, make_block())

    def finish():
        if cuts:
            sum_replicated_gradients(group, ours.replicated_parameters())

    theirs = dtensor_block(group, sequence_plan() if cuts else megatron_plan())
    return train(group, ours, cuts, finish), train(group, theirs, cuts, lambda: None)


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.__name__)
def test_our_layer_and_dtensors_have_the_same_outputs_gradients_and_weights(block, n):
    for ours, theirs in launch(train_both, n, block):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def weights_of_the_row(group):
    """The weights on this rank after two steps of each side of the bench's row, and before."""
    made, training_step = [], rows_tensor._training_step

    def noted(group, layers):
        made.append(layers)
        return training_step(group, layers)

    rows_tensor._training_step = noted
    (row,) = rows_tensor.ROWS
    before = [p.detach().clone() for p in rows_tensor._layers().parameters()]
    for side in (row.ours, row.twin):
        step = side(group)
        step()
        step()
    ours, twins = ([local(p.detach()) for p in layers.parameters()] for layers in made)
    return ours, twins, before


def test_both_sides_of_the_benchs_row_train_the_same_weights():
    for ours, twins, before in launch(weights_of_the_row, 2):
        torch.testing.assert_close(ours, twins, rtol=1e-5, atol=1e-6)
        whole = zip(ours, before, strict=True)
        moved = [(a - b).abs().max().item() for a, b in whole if a.shape == b.shape]
        assert max(moved) > 1e-6
