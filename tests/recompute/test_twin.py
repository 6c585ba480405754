"""The production twins: PyTorch's checkpoint, and its selective one, beside ours."""

from collections import Counter
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    create_selective_checkpoint_contexts,
)
from torch.utils.checkpoint import checkpoint as pytorchs

from pedagogy.recompute import by_rule, checkpoint
from pedagogy.workloads import ConvNet
from pedagogy.workloads.gpt import Block
from tests.recompute.running import assert_same

PRODUCTS = {"addmm", "mm", "bmm"}
theirs = partial(pytorchs, use_reentrant=False)


class Count(TorchDispatchMode):
    """How often each operation runs, views left out."""

    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view and func._schema.returns:
            self.names[str(func).removeprefix("aten.").split(".")[0].strip("_")] += 1
        return func(*args, **(kwargs or {}))


def block():
    torch.manual_seed(0)
    return Block(16, 2, 8, dropout=0.2), torch.randn(2, 8, 16, requires_grad=True)


def backward_of(call, module, x):
    """Gradients, and the operations of backward."""
    torch.manual_seed(3)
    output = call(module, x)
    with Count() as count:
        output.square().sum().backward()
    return [x.grad, *(p.grad for p in module.parameters())], count.names


def save_products(context, func, *args, **kwargs):
    is_product = str(func).split(".")[1] in PRODUCTS
    return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE


def their_selective(module, x):
    contexts = partial(create_selective_checkpoint_contexts, save_products)
    return theirs(module, x, context_fn=contexts)


def our_selective(module, x):
    """What autograd does not save cannot be kept: kept is the next that is saved."""

    def rule(made):
        return "keep" if PRODUCTS & {op.name for op in made.lineage()} else "recompute"

    with by_rule(rule):
        return module(x)


def again(call):
    """What it runs in backward beyond a plain backward; its gradients must be the plain ones."""
    right, plain = backward_of(lambda module, x: module(x), *block())
    gradients, names = backward_of(call, *block())
    assert_same(gradients, right)
    return names - plain


def test_checkpoint_runs_what_pytorchs_runs():
    ours, pytorchs_again = again(checkpoint), again(theirs)
    assert ours - pytorchs_again == Counter(clone=1, copy=1)  # no more, but a buffer is put back
    assert ours["addmm"] == pytorchs_again["addmm"] > 0


def test_selective_recomputation_gives_the_same_gradients_and_runs_no_product_again():
    ours, pytorchs_again = again(our_selective), again(their_selective)
    for names in (ours, pytorchs_again):
        assert not PRODUCTS & names.keys()
        assert names["gelu"] == 1
        assert names["native_layer_norm"] == 2
    assert (ours["softmax"], pytorchs_again["softmax"]) == (0, 1)  # the scores are not saved
    assert set(ours) - set(pytorchs_again) == {"empty", "set"}  # a view of what is kept


def test_ours_runs_only_what_leads_to_a_tensor_that_is_asked_for():
    """Theirs runs the whole stretch again, dropout's random numbers too; ours keeps the masks."""
    ours, pytorchs_again = again(our_selective), again(their_selective)
    assert pytorchs_again["bernoulli"] > 0
    assert ours["bernoulli"] == 0
    assert sum(ours.values()) < sum(pytorchs_again.values())


def test_batch_norms_statistics_move_twice_in_theirs_and_once_in_ours():
    moved = {}
    for name, call in (("ours", our_selective), ("theirs", their_selective)):
        torch.manual_seed(0)
        net = ConvNet(4).features
        call(net, torch.randn(3, 1, 8, 8, requires_grad=True)).sum().backward()
        moved[name] = net[1].num_batches_tracked.item()
    assert moved == {"ours": 1, "theirs": 2}


@pytest.mark.parametrize("call", [checkpoint, theirs], ids=["ours", "theirs"])
def test_a_stretch_stops_at_the_last_tensor_that_is_asked_for(call):
    ran = []

    def noted(module, inputs, output):
        ran.append(module)

    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Identity())
    for module in net:
        module.register_forward_hook(noted)
    call(net, torch.ones(2, 3)).sum().backward()
    assert ran[4:] == [net[0], net[1]]  # the second product reads what is there by then
