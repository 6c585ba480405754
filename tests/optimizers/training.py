"""Twenty steps that every optimizer takes alike, and other projects' optimizers to compare with.

Parameters of 0, 1, 2 and 4 dimensions; the same gradients for all, some of them as a training loop
may bring them: missing in a step, not contiguous, in channels_last, in 16 or 64 bits.
"""

import torch
from pytorch_optimizer import SM3 as THEIR_SM3
from torch import nn
from transformers.optimization import Adafactor as HUGGING_FACES

from pedagogy.optimizers import SM3, Adafactor, Adam, Adam8bit

SHAPES = ((), (5,), (3, 4), (2, 3, 4, 5))
STEPS = 20


def torchs_adafactor(params, lr=1e-2):
    return torch.optim.Adafactor(params, lr=lr, eps=(1e-30, 1e-3))


def hugging_faces(params, **settings):
    return HUGGING_FACES(params, **{"warmup_init": False, **settings})


def their_sm3(params, lr=0.1, momentum=0.0):
    return THEIR_SM3(params, lr=lr, momentum=momentum, beta=0.0)


PAIRS = {
    "Adam and torch's": (lambda p: Adam(p, 1e-2), lambda p: torch.optim.Adam(p, 1e-2)),
    "Adafactor and torch's": (Adafactor, torchs_adafactor),
    "Adafactor and Hugging Face's": (Adafactor, hugging_faces),
    "SM3-II and pytorch_optimizer's": (lambda p: SM3(p, 0.1), their_sm3),
}
OURS = {
    "Adam": lambda p: Adam(p, 1e-2),
    "Adafactor": Adafactor,
    "SM3": lambda p: SM3(p, 0.1),
    "SM3-I with momentum": lambda p: SM3(p, 0.1, momentum=0.9, variant=1),
    "Adam8bit": lambda p: Adam8bit(p, 1e-2, block_size=16, min_numel=8),
}


def parameters(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(shape, generator=generator) for shape in SHAPES]
    return [nn.Parameter(value.to(dtype)) for value in drawn]


def gradients(step, dtype=torch.float32, scale=1.0):
    generator = torch.Generator().manual_seed(1 + step)
    return [(scale * torch.randn(s, generator=generator)).to(dtype) for s in SHAPES]


def plain(gradient, step):
    return gradient


def train(make, as_brought=plain, dtype=torch.float32, scale=1.0, params=None):
    """The parameters after the steps; `as_brought` makes of a gradient what the optimizer gets."""
    params = parameters(dtype) if params is None else params
    optimizer = make(params)
    for step in range(STEPS):
        for parameter, gradient in zip(params, gradients(step, dtype, scale), strict=True):
            parameter.grad = as_brought(gradient, step)
        optimizer.step()
    return [parameter.detach() for parameter in params]


def distance(mine, theirs):
    """The largest difference, relative to the largest number; NaN, if one is NaN."""
    each = [
        (a - b).abs().max().double() / b.abs().max().clamp(min=1)
        for a, b in zip(mine, theirs, strict=True)
    ]
    return torch.stack(each).max().item()


def check_pair(mine, theirs, **how):
    assert distance(train(mine, **how), train(theirs, **how)) < 1e-6


def missing(gradient, step):
    """Every third step brings nothing, and the first steps bring the vector nothing."""
    return None if step % 3 == 1 or (gradient.dim() == 1 and step < 5) else gradient


def transposed(gradient, step):
    """The same numbers, in another order in memory."""
    if gradient.dim() < 2:
        return gradient
    order = tuple(range(gradient.dim()))[::-1]
    found = gradient.permute(order).contiguous().permute(order)
    assert not found.is_contiguous()
    return found


def channels_last(gradient, step):
    return gradient.to(memory_format=torch.channels_last) if gradient.dim() == 4 else gradient
