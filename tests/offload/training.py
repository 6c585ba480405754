"""Small models that are trained twice: as they are, and offloaded."""

from functools import cache

import torch
from torch import nn

from pedagogy.offload import OffloadedModule, OffloadedOptimizer
from pedagogy.ranks import Link
from pedagogy.workloads import GPT, MLP, ConvNet, digits_batch, text_batch

SIZES = {"layers": 3, "hidden": 16, "heads": 2, "sequence": 8}


def tied_gpt():
    torch.manual_seed(0)
    return GPT(**SIZES)


def untied_gpt_with_dropout():
    torch.manual_seed(0)
    return GPT(**SIZES, dropout=0.3, tied=False)


def gpt_with_a_frozen_bottom():
    model = tied_gpt()
    for module in (model.token, model.position, model.blocks[0]):
        module.requires_grad_(False)
    return model


def mlp():
    torch.manual_seed(0)
    return MLP((64, 30, 70, 10))


def convnet():
    torch.manual_seed(0)
    return ConvNet(4)


MODELS = [tied_gpt, untied_gpt_with_dropout, gpt_with_a_frozen_bottom, mlp, convnet]
FEWER = [untied_gpt_with_dropout, gpt_with_a_frozen_bottom, convnet]


def layers_of(model):
    """In the order in which they run; the blocks of a GPT are found by themselves."""
    if isinstance(model, GPT):
        return None
    return list(model.layers) if isinstance(model, MLP) else [*model.features, model.classifier]


def batches(model, steps=5):
    """Text for a GPT, digits for the others."""
    if isinstance(model, GPT):
        return [text_batch(2, SIZES["sequence"], step=step) for step in range(steps)]
    return [digits_batch(6, step=step) for step in range(steps)]


def adamw(parameters, **changes):
    return torch.optim.AdamW(parameters, **{"lr": 0.01, "weight_decay": 0.1, **changes})


def train(model, optimizer, steps=5, loss=None):
    """The loop that both share; dropout draws the same numbers. Returns the losses."""
    torch.manual_seed(3)
    losses = []
    for batch in batches(model, steps):
        optimizer.zero_grad()
        value = (loss or model.loss)(*batch)
        value.backward()
        optimizer.step()
        losses.append(value.detach())
    return losses


@cache
def unlimited(make):
    """Trained as it is: losses and values by name, buffers included."""
    model = make()
    return train(model, adamw(model.parameters())), values(model)


def offload(make, prefetch=1, link=None, optimizer_class=torch.optim.AdamW, **arguments):
    """The model, offloaded, and its optimizer."""
    model = make()
    module = OffloadedModule(model, link or Link(), prefetch, layers_of(model), **arguments)
    chosen = {"lr": 0.01, "weight_decay": 0.1}
    return module, OffloadedOptimizer(module, optimizer_class, **chosen)


def values(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same(mine, right):
    """To the bit."""
    if isinstance(right, dict):
        assert mine.keys() == right.keys()
        mine, right = mine.values(), right.values()
    if isinstance(right, torch.Tensor):
        assert mine.dtype == right.dtype
        assert torch.equal(mine, right)
        return
    for a, b in zip(mine, right, strict=True):
        assert_same(a, b)


def bytes_of(module: nn.Module) -> int:
    return sum(p.nbytes for p in module.parameters())
