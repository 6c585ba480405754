"""Chapter 10: the references do what the package does; answers as readers write them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pedagogy.costs.optimizers import state_bytes as predicted_bytes
from pedagogy.exercises import engine, prediction
from pedagogy.exercises.chapter10 import FACTORED, factored_square
from pedagogy.exercises.chapter10_predictions import (
    ESTIMATE,
    GPT2,
    LOST,
    MATRIX,
    RELATIVE,
    WRITTEN,
)
from pedagogy.exercises.chapter10_states import (
    BLOCKS,
    COVERED,
    SHAPES,
    STORE,
    sm3_step,
    store_in_blocks,
)
from pedagogy.exercises.chapter10_step import ADAFACTOR, GROUP, adafactor_step
from pedagogy.optimizers import SM3, Adafactor
from pedagogy.optimizers.adafactor import second_moment
from pedagogy.optimizers.sm3 import sm3_two


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# --- the references -------------------------------------------------------------------------------


def test_C67_an_estimate_from_row_and_column_means():
    g = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    estimate = factored_square([g])
    torch.testing.assert_close(estimate, torch.tensor([[5, 10], [25, 50]]) / 3)
    torch.testing.assert_close(estimate.sum(1), g.square().sum(1))
    assert prediction.judge(ESTIMATE, [[1.6667, 3.3333], [8.3333, 16.6667]]).startswith("correct")
    assert prediction.judge(ESTIMATE, [[1.7, 3.3], [8.3, 16.7]]).startswith("correct")
    zeros = torch.zeros(2, 3)
    assert (zeros / factored_square([zeros]).sqrt()).eq(0).all()


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4)])
def test_estimates_over_steps_are_the_package_s(shape):
    gradients, state = list(normal(6, *shape)), {}
    for step, gradient in enumerate(gradients, start=1):
        theirs = second_moment(gradient.square() + 1e-30, state, 1 - step**-0.8)
        torch.testing.assert_close(factored_square(gradients[:step]), theirs)


@pytest.mark.parametrize("choices", [{"clip_threshold": 0.5}, {"lr": 0.03, "relative_step": False}])
@pytest.mark.parametrize("shape", [(3, 4), (5,), (2, 3, 4), ()])
def test_adafactor_s_steps_are_the_package_s(shape, choices):
    parameter, state = nn.Parameter(normal(*shape)), {}
    optimizer, weight = Adafactor([parameter], **choices), parameter.detach().clone()
    group = GROUP | {"lr": choices.get("lr"), "clip": choices.get("clip_threshold", 1.0)}
    for step in range(1, 6):
        parameter.grad = step * normal(*shape, seed=step)
        optimizer.step()
        weight = adafactor_step(weight, parameter.grad, state, group, step)
        torch.testing.assert_close(weight, parameter.detach())


def test_C65_the_first_parameter_s_step_is_not_the_second_one_s_rate():
    group = GROUP | {"lr": 1e-3}
    for size, moved in ((0.1, 1e-4), (0.5, 5e-4)):
        weight = torch.full((2,), size, dtype=torch.float64)
        after = adafactor_step(weight, torch.ones_like(weight), {}, group, 1)
        assert (weight - after).tolist() == pytest.approx([moved] * 2)
    assert group == GROUP | {"lr": 1e-3}
    assert prediction.judge(WRITTEN, 10).startswith("correct")


@pytest.mark.parametrize(("size", "at"), [(0.5, [0.005, 0.005, 0.0005]), (0, [1e-5, 1e-5, 1e-6])])
def test_C66_the_relative_step_at_three_times(size, at):
    for step, moved in zip((1, 10**4, 10**6), at, strict=True):
        weight = torch.full((1,), size, dtype=torch.float64)
        after = adafactor_step(weight, torch.ones_like(weight), {}, GROUP, step)
        assert (weight - after).item() == pytest.approx(moved)
    assert prediction.judge(RELATIVE, [0.01, 0.01, 0.001]).startswith("correct")


@pytest.mark.parametrize("label", SHAPES)
def test_SM3_s_steps_are_the_package_s(label):
    shape = SHAPES[label]
    parameter, covers, total = nn.Parameter(normal(*shape)), [], torch.zeros(shape)
    optimizer, weight = SM3([parameter], lr=0.1), parameter.detach().clone()
    for step in range(4):
        parameter.grad = normal(*shape, seed=step).relu()
        total += parameter.grad**2
        optimizer.step()
        weight, covers = sm3_step(weight, parameter.grad, covers, 0.1)
        torch.testing.assert_close(weight, parameter.detach())
        torch.testing.assert_close(covers, optimizer.state[parameter]["covers"])
        assert (sm3_two([cover.clone() for cover in covers], 0 * total) >= total * 0.999).all()


@pytest.mark.parametrize("label", BLOCKS)
def test_a_code_is_at_most_half_a_code_off(label):
    values, block_size = BLOCKS[label]
    codes, largest = store_in_blocks(values, block_size)
    scale = largest.repeat_interleave(block_size)[: len(values)] / 127
    assert ((codes * scale - values).abs() <= scale / 2 + 1e-6).all()


def test_what_a_linear_code_loses():
    assert store_in_blocks(torch.tensor([254.1, 1.0]), 2)[0].tolist() == [127, 0]
    assert store_in_blocks(torch.tensor([253.9, 1.0]), 2)[0].tolist() == [127, 1]
    assert prediction.judge(LOST, 254).startswith("correct")


def test_the_state_of_a_matrix_by_hand():
    n, m = 64, 256
    by_hand = [8 * n * m, 4 * (n + m), 4 * (n + m), 2 * n * m + 8 * 8]
    assert prediction.judge(MATRIX, by_hand).startswith("correct")
    kinds = ("Adam", "Adafactor", "SM3", "Adam8bit")
    assert [predicted_bytes(kind, [(n, m)]) for kind in kinds] == by_hand
    assert prediction.judge(GPT2, "Adafactor").startswith("correct")


# --- answers as a reader would write them ---------------------------------------------------------


def with_outer(gradients, eps=1e-30):
    """Right, for matrices alone."""
    for t, g in enumerate(gradients, 1):
        square = g * g + eps
        beta = 1 - t ** (-0.8)
        if t == 1:
            r, c = square.mean(1), square.mean(0)
        else:
            r = beta * r + (1 - beta) * square.mean(1)
            c = beta * c + (1 - beta) * square.mean(0)
    return torch.outer(r, c) / r.mean()


def with_dict(gradients, eps=1e-30):
    state = {}
    for t, g in enumerate(gradients, 1):
        v = second_moment(g**2 + eps, state, 1 - t**-0.8)
    return v


def no_eps(gradients, eps=1e-30):
    r = c = torch.zeros(())
    for t, g in enumerate(gradients, 1):
        beta = 1 - t**-0.8
        r = beta * r + (1 - beta) * g.square().mean(-1)
        c = beta * c + (1 - beta) * g.square().mean(-2)
    return r[..., None] * c[..., None, :] / r.mean(-1)[..., None, None]


def rows_and_columns(gradients, eps=1e-30, kept_at=lambda t: 1 - t**-0.8):
    r = c = torch.zeros(())
    for t, g in enumerate(gradients, 1):
        kept, square = kept_at(t), g * g + eps
        r = torch.lerp(square.mean(-1), r, kept)
        c = torch.lerp(square.mean(-2), c, kept)
    return r, c


def product_first(gradients, eps=1e-30):
    r, c = rows_and_columns(gradients, eps)
    return r.unsqueeze(-1) * c.unsqueeze(-2) / r.mean(-1)[..., None, None]


def one_mean_for_all(gradients, eps=1e-30):
    r, c = rows_and_columns(gradients, eps)
    return (r / r.mean()).unsqueeze(-1) * c.unsqueeze(-2)


def late_eps(gradients, eps=1e-30):
    r, c = rows_and_columns(gradients, 0.0)
    return (r / r.mean(-1, keepdim=True)).unsqueeze(-1) * c.unsqueeze(-2) + eps


def exchanged(gradients, eps=1e-30):
    r, c = rows_and_columns(gradients, eps, kept_at=lambda t: t**-0.8)
    return (r / r.mean(-1, keepdim=True)).unsqueeze(-1) * c.unsqueeze(-2)


def no_fading(gradients, eps=1e-30):
    square = sum(g**2 + eps for g in gradients) / len(gradients)
    r, c = square.mean(-1), square.mean(-2)
    return (r / r.mean(-1, keepdim=True)).unsqueeze(-1) * c.unsqueeze(-2)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (with_dict, "correct"),
        (product_first, "1e-30 times 1e-30 is 0"),
        (one_mean_for_all, "The mean of all row means"),
        (late_eps, "eps comes too late"),
        (exchanged, "have changed places"),
        (no_fading, "none fades"),
        (with_outer, "1-D argument self"),
        (no_eps, "Without eps a row of zeros"),
        (lambda gradients, eps=0.0: gradients[-1].square().mean(), "the estimate"),
    ],
)
def test_estimates_are_explained(answer, says):
    assert says in engine.explain(FACTORED, answer)


def own_state(weight, gradient, state, group, step, write=False, clip=True):
    v = second_moment(gradient**2 + group["eps"][0], state, 1 - step**-0.8)
    u = gradient * v.rsqrt()
    if clip:
        u = u / (u.pow(2).mean().sqrt() / group["clip"]).clamp(min=1)
    lr = group["lr"]
    if lr is None:
        lr = min(0.01, 1 / step**0.5)
    lr = lr * max(group["eps"][1], weight.pow(2).mean().sqrt().item())
    if write:
        group["lr"] = lr
    return weight - lr * u


def plainly(weight, gradient, state, group, step, eps=True, clipped=None, sized=True, first=False):
    """Adafactor, each part of it as a reader could get it wrong."""
    square = gradient.pow(2) + (group["eps"][0] if eps else 0)
    keep = 1 - step**-0.8
    fresh = (square.mean(-1), square.mean(-2)) if weight.ndim == 2 else (square,)
    state["v"] = tuple(
        keep * a + (1 - keep) * b for a, b in zip(state.get("v", fresh), fresh, strict=True)
    )
    v = state["v"][0]
    if weight.ndim == 2:
        r, c = state["v"]
        v = torch.outer(r, c) / r.mean() if first else torch.outer(r / r.mean(), c)
    u = gradient / v.sqrt()
    rms = u.pow(2).mean().sqrt()
    u = clipped(u, rms, group["clip"]) if clipped else u / max(1, rms / group["clip"])
    rate = group["lr"] or min(1e-2, step**-0.5)
    return weight - rate * (max(group["eps"][1], weight.pow(2).mean().sqrt()) if sized else 1) * u


def clamped(u, rms, clip):
    return u / (rms / clip).clamp(min=1)


def full_v(weight, gradient, state, group, step):
    square = gradient**2 + group["eps"][0]
    state["v"] = torch.lerp(state.get("v", square), square, step**-0.8)
    u = gradient / state["v"].sqrt()
    u = u / max(1, (u.norm() / u.numel() ** 0.5).item() / group["clip"])
    rate = group["lr"] or min(1e-2, step**-0.5)
    return weight - rate * max(group["eps"][1], weight.norm().item() / weight.numel() ** 0.5) * u


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (own_state, "correct"),
        (lambda *given: own_state(*given, write=True), "is written into the group"),
        (lambda *given: own_state(*given, clip=False), "The update is not clipped"),
        (full_v, "A number is kept for each parameter"),
        (plainly, "correct"),
        (lambda *given: plainly(*given, eps=False), "Add eps1 to the squares"),
        (lambda *given: plainly(*given, eps=False, clipped=clamped), "Add eps1 to the squares"),
        (lambda *given: plainly(*given, first=True), "1e-30 times 1e-30 is 0"),
        (lambda *given: plainly(*given, sized=False), "multiplied by the weight's size"),
        (
            lambda *given: plainly(*given, clipped=lambda u, rms, clip: u / max(1, rms)),
            "whatever the group says",
        ),
        (
            lambda *given: plainly(*given, clipped=lambda u, rms, clip: u.clip(-clip, clip)),
            "Each element is cut off",
        ),
        (
            lambda *given: plainly(*given, clipped=lambda u, rms, clip: u * clip / rms),
            "Small updates are made larger",
        ),
    ],
)
def test_adafactor_steps_are_explained(answer, says):
    assert says in engine.explain(ADAFACTOR, answer)


def with_loop(values, block_size):
    codes, largest = [], []
    for first in range(0, len(values), block_size):
        block = values[first : first + block_size]
        top = block.abs().max().item()
        largest.append(top)
        codes += [round(127 * value / top) if top else 0 for value in block.tolist()]
    return torch.tensor(codes, dtype=torch.int8), torch.tensor(largest)


def cut_off(values, block_size):
    largest = torch.stack([block.abs().max() for block in values.split(block_size)])
    scale = largest.clamp(min=1e-12).repeat_interleave(block_size)[: len(values)]
    return (values / scale * 127).to(torch.int8), largest


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (with_loop, "correct"),
        (cut_off, "int8 cuts off"),
        (lambda values, block_size: values, "Two tensors were asked for"),
    ],
)
def test_blocks_are_explained(answer, says):
    assert says in engine.explain(STORE, answer)


def with_amax(weight, gradient, covers, lr, broad=False, order=min):
    """Covers are vectors, as the package's; or keep their dimensions, as in other programs."""
    dims = range(max(weight.dim(), 1))
    square = gradient.reshape(weight.shape or (1,)) ** 2
    nu = square.clone()
    if covers:
        shaped = [
            cover.reshape([-1 if dim == own else 1 for dim in dims])
            for own, cover in enumerate(covers)
        ]
        least = shaped[0]
        for cover in shaped[1:]:
            least = torch.minimum(least, cover)
        nu = nu + least
    covers = []
    for own in dims:
        others = [dim for dim in dims if dim != own]
        cover = nu.amax(others, keepdim=True) if others else nu
        covers.append(cover if broad else cover.flatten())
    root = nu.sqrt().reshape(weight.shape)
    return weight - lr * gradient / root.masked_fill(root == 0, 1.0), covers


def with_0_by_0(weight, gradient, covers, lr):
    shape = weight.shape or (1,)
    covers = covers or [torch.zeros(size) for size in shape]
    nu = sm3_two(covers, gradient.reshape(shape) ** 2).reshape(weight.shape)
    return weight - lr * gradient / nu.sqrt(), covers


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (with_amax, "correct"),
        (lambda *given: with_amax(*given, broad=True), "correct"),
        (with_0_by_0, "0 / 0 is NaN"),
        (lambda weight, *others: weight, "a list of covers"),
    ],
)
def test_covers_are_explained(answer, says):
    assert says in engine.explain(COVERED, answer)
