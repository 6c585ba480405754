"""Chapter 10: 8 bits for a number in a block, and one number for each row and column (SM3)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce

import torch
from torch import Tensor

from pedagogy.exercises.attempt import Refused
from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.registry import register


def store_in_blocks(values: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """(codes, the largest magnitude of each block): 8 bits a value, and 4 bytes a block."""
    blocks = values.split(block_size)  # the last one may be shorter
    largest = torch.stack([block.abs().amax() for block in blocks])
    codes = [
        (127 * block / top if top > 0 else block).round()
        for block, top in zip(blocks, largest, strict=True)
    ]
    return torch.cat(codes).to(torch.int8), largest


def sm3_step(
    weight: Tensor, gradient: Tensor, covers: list[Tensor], lr: float
) -> tuple[Tensor, list[Tensor]]:
    """(weight, covers) after a step of SM3-II."""
    shape = weight.shape or (1,)
    nu = gradient.view(shape) ** 2
    if covers:
        behind = [[1] * (len(shape) - 1 - dim) for dim in range(len(shape))]
        broad = [cover.view(-1, *ones) for cover, ones in zip(covers, behind, strict=True)]
        nu = nu + reduce(torch.minimum, broad)
    covers = [nu.movedim(dim, 0).reshape(size, -1).amax(1) for dim, size in enumerate(shape)]
    nu = nu.view(weight.shape)
    return weight - lr * torch.where(nu > 0, gradient / nu.sqrt(), 0.0), covers


# --- mistakes -------------------------------------------------------------------------------------


def _stored(
    values: Tensor,
    block_size: int,
    top_of: Callable[[Tensor], Tensor] = lambda block: block.abs().amax(),
    code: Callable[[Tensor], Tensor] = lambda relative: (127 * relative).round(),
) -> tuple[Tensor, Tensor]:
    blocks = values.split(block_size)
    largest = torch.stack([top_of(block) for block in blocks])
    codes = [code(block / top.clamp(min=1e-30)) for block, top in zip(blocks, largest, strict=True)]
    return ((torch.cat(codes) + 128) % 256 - 128).to(torch.int8), largest


def _one_block(values, block_size):
    codes, largest = store_in_blocks(values, len(values))
    return codes, largest.repeat(-(-len(values) // block_size))


def _padded(values, block_size):
    padded = torch.cat([values, values.new_zeros(-len(values) % block_size)])
    return store_in_blocks(padded, block_size)


BLOCK_MISTAKES = [
    (
        _one_block,
        "One scale for all: an outlier pushes every other value towards code 0. Each block is "
        "divided by its own largest magnitude.",
    ),
    (
        partial(_stored, top_of=lambda block: block.amax()),
        "The largest value is not the largest magnitude: a block whose largest is negative "
        "overflows. abs() first.",
    ),
    (
        partial(_stored, code=lambda relative: (128 * relative).round()),
        "128 is no int8: 127 is the largest, and 128 becomes -128. Times 127.",
    ),
    (
        partial(_stored, code=lambda relative: (127 * relative).trunc()),
        "int8 cuts off what is behind the point, up to a whole code. Round first.",
    ),
    (
        _padded,
        "The last block is filled up, and there are more codes than values. It may be shorter.",
    ),
]


def _largest(nu: Tensor) -> list[Tensor]:
    return [nu.movedim(dim, 0).reshape(size, -1).amax(1) for dim, size in enumerate(nu.shape)]


def _least(covers: list[Tensor], choose: Callable = torch.minimum) -> Tensor:
    ones = [[1] * (len(covers) - 1 - dim) for dim in range(len(covers))]
    return reduce(choose, [cover.view(-1, *one) for cover, one in zip(covers, ones, strict=True)])


def _sm3(
    weight: Tensor,
    gradient: Tensor,
    covers: list[Tensor],
    lr: float,
    choose: Callable[[Tensor, Tensor], Tensor] = torch.minimum,
    update: Callable[[Tensor, Tensor], Tensor] = lambda old, new: new,
    nothing: float = 0.0,
) -> tuple[Tensor, list[Tensor]]:
    square = gradient.view(weight.shape or (1,)) ** 2
    covers = covers or _largest(0 * square)
    nu = square + _least(covers, choose)
    covers = [update(old, new) for old, new in zip(covers, _largest(nu), strict=True)]
    return weight - lr * (gradient / nu.sqrt().view_as(weight)).nan_to_num(nothing), covers


def _first_kind(weight, gradient, covers, lr):
    square = gradient.view(weight.shape or (1,)) ** 2
    covers = covers or _largest(0 * square)
    covers = [old + new for old, new in zip(covers, _largest(square), strict=True)]
    nu = (_least(covers) + 0 * square).view_as(weight)
    return weight - lr * (gradient / nu.sqrt()).nan_to_num(), covers


def _full(weight, gradient, covers, lr):
    nu = gradient**2 + (covers[0].view(weight.shape) if covers else 0.0)
    return weight - lr * (gradient / nu.sqrt()).nan_to_num(), [nu.flatten()]


COVER_MISTAKES = [
    (
        _first_kind,
        "That is SM3-I: the covers grow by the largest square, and the bound is read afterwards. "
        "II reads the bound, adds each square, and a cover becomes the largest nu: never more.",
    ),
    (
        partial(_sm3, choose=torch.maximum),
        "Every cover that holds a number is a bound for it: the least of them is the best one.",
    ),
    (
        partial(_sm3, update=lambda old, new: old + new),
        "nu already holds what was there before: a cover becomes the largest nu, it is not added.",
    ),
    (
        partial(_sm3, nothing=float("nan")),
        "Where nu is 0 the gradient has always been 0, and 0 / 0 is NaN. There is no update there.",
    ),
    (
        _full,
        "A number is kept for each parameter: that is Adagrad. SM3 keeps one for each index of "
        "each dimension.",
    ),
]

# --- the cases ------------------------------------------------------------------------------------


def _drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


BLOCKS = {
    "blocks of 4, one with an outlier": (
        torch.tensor([0.3, -0.1, 0.2, 0.05, 40.0, 1.0, -3.0, 0.4]),
        4,
    ),
    "the largest of a block is negative": (torch.tensor([-2.0, 1.0, 0.5, 0.9]), 4),
    "10 values in blocks of 4": (_drawn(10), 4),
    "a block of zeros": (torch.tensor([0.0, 0.0, 1.0, -0.5]), 2),
}
SHAPES = {"2 by 2": (2, 2), "2 by 3 by 4": (2, 3, 4), "a vector of 5": (5,), "one number": ()}


def _stored_values(function: Callable, values: Tensor, block_size: int) -> dict | None:
    answer = function(values.clone(), block_size)
    if answer is None:
        return None
    if not isinstance(answer, (tuple, list)) or len(answer) != 2:
        raise Refused("two tensors were asked for: codes and the largest of each block")
    return {"the largest of each block": answer[1], "the codes": answer[0]}


def _three_steps(function: Callable, *shape: int) -> dict | None:
    weight, covers, weights = torch.zeros(shape), [], []
    for step in range(3):
        gradient = _drawn(3, *shape)[step].round(decimals=1)
        if gradient.dim():
            gradient[0] = 0.0  # always, so that nu is 0 there
        answer = function(weight, gradient, covers, 1.0)
        if answer is None:
            return None
        if not isinstance(answer, (tuple, list)) or not isinstance(answer[-1], (tuple, list)):
            raise Refused("the weight and a list of covers were asked for")
        weight, covers = answer
        weights.append(weight)
    return {
        "the weight after each step": weights,
        "numbers kept": sum(cover.numel() for cover in covers),
    }


STORE = Exercise(
    name="store_in_blocks",
    title="Eight bits, block by block",
    chapter="10",
    reference=store_in_blocks,
    cases=list(BLOCKS.values()),
    labels=list(BLOCKS),
    observe=_stored_values,
    mistakes=BLOCK_MISTAKES,
    hints=[
        "values.split(block_size) gives the blocks, the last one shorter if need be.",
        "(127 * block / block.abs().amax()).round().to(torch.int8), unless the largest is 0.",
    ],
)

COVERED = Exercise(
    name="sm3_step",
    title="A bound from covers",
    chapter="10",
    reference=sm3_step,
    cases=list(SHAPES.values()),
    labels=list(SHAPES),
    observe=_three_steps,
    mistakes=COVER_MISTAKES,
    hints=[
        "A cover of dimension `dim` is viewed as (-1, 1, ..., 1), with a 1 for each dimension "
        "behind it; torch.minimum broadcasts.",
        "nu.movedim(dim, 0).reshape(size, -1).amax(1) is the largest nu for each index of `dim`.",
        "A 0-d weight: take it as a vector of one number.",
    ],
)

register(STORE, COVERED)
