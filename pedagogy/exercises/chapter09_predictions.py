"""Chapter 09: what is asked before anything is compressed."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from pedagogy.compression import Masks, break_even_rank, distillation_loss, sharing_ratio, sign
from pedagogy.exercises.prediction import Prediction
from pedagogy.exercises.registry import register


def _moved_by_momentum() -> float:
    weight = nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    for gradient in (1.0, 0.0):
        nn.init.zeros_(weight)  # pruned, before the second step
        weight.grad = torch.tensor(gradient)
        optimizer.step()
    return weight.item()


MOVED = Prediction(
    name="pruned_weight_moves_c69",
    chapter="09",
    question="A weight: one step of SGD (momentum 0.9, lr 0.1) with gradient 1. It is pruned to 0, "
    "and its gradient is masked to 0. What is the weight after the next step?",
    key=_moved_by_momentum,
    mistakes=[
        (0, "the gradient is 0, momentum is not: it remembers the 1."),
        (-0.1, "momentum has faded to 0.9 of what it was."),
        (0.09, "a step goes against the gradient."),
    ],
    because="Momentum is 0.9, times 0.1. The mask belongs on the weight, after each step.",
)


def _bytes_a_weight() -> list[float]:
    layer = nn.Linear(16, 16, bias=False)
    optimizer, masks = torch.optim.Adam(layer.parameters()), Masks()
    layer(torch.ones(1, 16)).sum().backward()
    optimizer.step()
    moments = [optimizer.state[layer.weight][name] for name in ("exp_avg", "exp_avg_sq")]
    before = sum(tensor.nbytes for tensor in (layer.weight, layer.weight.grad, *moments))
    masks.prune(layer.parameters(), 0.9)
    after = before + sum(mask.nbytes for mask in masks.of.values())
    return [before / layer.weight.numel(), after / layer.weight.numel()]


BYTES = Prediction(
    name="training_bytes_of_a_mask",
    chapter="09",
    question="A layer's weights in fp32 are trained with Adam; then 90 % of them are pruned, and "
    "held at 0 by a mask in fp32. Bytes a weight in training? [before, pruned]",
    key=_bytes_a_weight,
    mistakes=[
        ([16, 1.6], "zeros are stored like other numbers, and so are their moments."),
        ([16, 16], "the mask is a tensor, too."),
        ([16, 5.6], "gradient and moments have their full size: the tensor does not shrink."),
        ([4, 8], "gradient and moments are there while it trains."),
    ],
    because="Weight, gradient and two moments, and then the mask. Pruning saves in the file.",
)


def _work_and_bytes() -> list[int]:
    layer = nn.Linear(64, 300, bias=False)
    Masks().prune(layer.parameters(), 0.9)
    with FlopCounterMode(display=False) as counter:
        layer(torch.ones(1, 64))
    return [counter.get_total_flops() // 2, layer.weight.nbytes]


ZEROS = Prediction(
    name="what_zeros_save",
    chapter="09",
    question="nn.Linear(64, 300) without a bias; 90 % of its weights are set to zero. How many "
    "multiplications does one input take, and how many bytes has the weight? [number, bytes]",
    key=_work_and_bytes,
    tolerance=0.0,
    mistakes=[
        ([1920, 7680], "a full tensor stores zeros like other numbers, and they are multiplied."),
        ([19200, 7680], "a full tensor stores zeros like other numbers."),
        ([1920, 76800], "the product does not look whether a number is zero."),
        ([1920, 8880], "so little has a file with gaps of 5 bits; the tensor is a full one."),
    ],
    because="Both are those of 19,200 weights: zeros in a full tensor save nothing.",
)

RATIO = Prediction(
    name="ratio_of_five_values",
    chapter="09",
    question="100 weights of 32 bits share 5 values. How many times smaller, with the codebook?",
    key=lambda: sharing_ratio(100, 32, 5),
    mistakes=[
        (3200 / (100 * 2.321928 + 160), "an index has a whole number of bits: 3."),
        (3200 / 300, "the codebook is not in it: 5 values of 32 bits."),
        (3200 / (200 + 160), "2 bits tell 4 values apart."),
    ],
    because="3,200 / (100 x 3 + 5 x 32).",
)

RANK = Prediction(
    name="largest_useful_rank",
    chapter="09",
    question="A layer of 512 x 1000 becomes two of rank r. What is the largest r that saves "
    "parameters?",
    key=lambda: break_even_rank(512, 1000),
    tolerance=0.0,
    mistakes=[
        (512, "then they have 512 x 512 + 512 x 1000 parameters."),
        (511, "two matrices are stored: r (512 + 1000) parameters."),
        (339, "339 x 1512 = 512,568, more than 512,000."),
        (256, "that saves 24 %; a larger one still saves something."),
    ],
    because="r < 512 x 1000 / (512 + 1000) = 338.6.",
)

SVD = Prediction(
    name="parameters_of_80_percent",
    chapter="09",
    question="Of a layer of 4096 x 4096 the largest 80 % of the singular values are kept, 3277. "
    "Its parameters, in parts of the original's?",
    key=lambda: 3277 * (4096 + 4096) / 4096**2,
    mistakes=[
        (0.8, "two matrices are kept, each of 80 % of the original."),
        (0.64, "both matrices have one side of 4096."),
    ],
    because="2 x 0.8: it is larger. Below half of the rank it is smaller.",
)


def _straight_through() -> list[float]:
    latent = torch.tensor([-1.5, -0.9, 0.0, 0.9, 1.5], requires_grad=True)
    sign(latent).sum().backward()
    return latent.grad.tolist()


THROUGH = Prediction(
    name="straight_through_c76",
    chapter="09",
    question="Real weights -1.5, -0.9, 0, 0.9, 1.5 stand behind binary ones, each of which has the "
    "gradient 1. What are the gradients of the real weights? (five numbers)",
    key=_straight_through,
    mistakes=[
        ([0, 0, 0, 0, 0], "that is the sign's own derivative, which would teach nothing."),
        ([1, 1, 1, 1, 1], "beyond 1 nothing passes, so that weights do not run away."),
        ([-1, -1, 1, 1, 1], "the gradient is passed on as it is, not times the sign."),
        ([0, 1, 0, 1, 0], "0 lies between -1 and 1 like the others."),
    ],
    because="As if the sign were a straight line between -1 and 1.",
)


def _soft_gradient(temperature: float, scale: float) -> float:
    student = torch.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    teacher = torch.tensor([[3.0, 2.0, 1.0]])
    (scale * distillation_loss(student, teacher, torch.tensor([0]), temperature, 1.0)).backward()
    return student.grad[0, 0].item()


SQUARED = Prediction(
    name="without_t_squared",
    chapter="09",
    question="Distillation at T = 20, and T^2 is forgotten. How many times smaller is the gradient "
    "of the soft term than with it?",
    key=lambda: _soft_gradient(20.0, 1.0) / _soft_gradient(20.0, 1 / 20.0**2),
    mistakes=[
        (20, "1/T comes from the logits' division, another 1/T from the flatter probabilities."),
        (1, "then T^2 would be for nothing."),
    ],
    because="With T^2 it is about as large at every temperature.",
)

register(MOVED, BYTES, ZEROS, RATIO, RANK, SVD, THROUGH, SQUARED)
