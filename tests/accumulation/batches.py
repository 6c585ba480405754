"""What the tests of accumulation train: micro-batches of unequal counts, some of them empty."""

import torch
from torch import nn
from torch.nn import functional

from pedagogy.workloads import GPT, text_batch
from tests.equality import Awkward

IGNORED = -100


def summed(model, microbatch):
    """Summed cross-entropy over the labels that count."""
    inputs, labels = microbatch
    logits = model(inputs).flatten(0, -2)
    return functional.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED, reduction="sum")


def labels_of(microbatch):
    """How many labels count, as a tensor of one number."""
    return (microbatch[1] != IGNORED).sum()


def mean_loss(model, microbatches):
    """The truth: one large batch, PyTorch's own mean over the labels that count."""
    inputs, labels = (torch.cat(parts) for parts in zip(*microbatches, strict=True))
    logits = model(inputs).flatten(0, -2)
    return functional.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED)


def awkward():
    """Tied, frozen and unused parameters, in float64; the same on every rank."""
    torch.manual_seed(5)
    return Awkward().double()


def awkward_batches(sizes=(4, 1, 3, 2, 5), seed=0, ignored=0.3):
    """Micro-batches of these sizes; labels ignored at random, all of the second."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for index, size in enumerate(sizes):
        labels = torch.randint(3, (size,), generator=generator)
        without = torch.rand(size, generator=generator) < (1.0 if index == 1 else ignored)
        inputs = torch.randn(size, 7, generator=generator, dtype=torch.float64)
        found.append((inputs, labels.masked_fill(without, IGNORED)))
    return found


def gpt():
    """A GPT with tied embeddings and frozen positions, in float64; no dropout."""
    torch.manual_seed(6)
    model = GPT(vocabulary=256, layers=1, hidden=6, heads=2, sequence=5).double()
    model.position.weight.requires_grad_(False)
    return model


def gpt_batches(sizes=(2, 1, 3, 1)):
    """Text; the labels after the first few of each micro-batch are padding."""
    found = []
    for index, size in enumerate(sizes):
        inputs, labels = text_batch(size, 5, step=index)
        labels = labels.clone()
        labels[:, 1 + index :] = IGNORED
        found.append((inputs, labels))
    return found


class Weight(nn.Module):
    """One number w; the loss of an item x is w x, so that its gradient is x."""

    def __init__(self, start=0.0):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, x):
        """The losses of the items."""
        return self.w * x


def items(*values):
    """A micro-batch for `Weight`."""
    return torch.tensor(values, dtype=torch.float64)


def total(model, microbatch):
    """The summed loss of `Weight`."""
    return model(microbatch).sum()


def gradients(model):
    """By name; None where there is none."""
    named = model.named_parameters()
    return {name: None if p.grad is None else p.grad.clone() for name, p in named}


def assert_same(found, expected, tolerance=1e-10):
    """Gradients, or weights, by name: close, and absent in the same places."""
    assert found.keys() == expected.keys()
    for name, right in expected.items():
        if right is None or found[name] is None:
            assert found[name] is right, name
        else:
            torch.testing.assert_close(found[name], right, rtol=tolerance, atol=tolerance)
