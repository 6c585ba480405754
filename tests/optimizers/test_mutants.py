"""The checks notice optimizers that are wrong by one line, and nothing else."""

import pytest
import torch
from torch import nn

from pedagogy.optimizers import SM3, Adafactor, Adam, Adam8bit
from pedagogy.optimizers.adafactor import rms
from tests.optimizers.mutants import MUTANTS, mutant
from tests.optimizers.test_state_bytes import OPTIMIZERS, check_bytes, check_resumes
from tests.optimizers.training import (
    check_pair,
    hugging_faces,
    missing,
    plain,
    their_sm3,
)


def check_adam(adam):
    for as_brought in (plain, missing):
        check_pair(lambda p: adam(p, 1e-2), lambda p: torch.optim.Adam(p, 1e-2),
                   as_brought=as_brought)  # fmt: skip
    late_step(adam)
    check_pair(lambda p: adam(p, 1e-2, eps=0.1), lambda p: torch.optim.Adam(p, 1e-2, eps=0.1))
    check_bytes(adam, OPTIMIZERS["Adam"][1])
    check_resumes(adam)


def late_step(adam):
    """A parameter's first step is its first, whenever it comes: lr in Adam, whatever the rest."""
    first, late = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = adam([first, late], 1e-2)
    for step in range(5):
        first.grad, late.grad = torch.ones(2), torch.ones(2) if step == 4 else None
        optimizer.step()
    assert late.tolist() == pytest.approx([0.99] * 2)


def check_adafactor(adafactor):
    def zero_row(gradient, step):
        return gradient * torch.tensor([0.0, 1, 1])[:, None] if gradient.dim() == 2 else gradient

    check_pair(adafactor, hugging_faces, as_brought=zero_row)
    for settings in (
        {"lr": 1e-3, "relative_step": False},
        {"clip_threshold": 0.3},
    ):
        check_pair(
            lambda p, s=settings: adafactor(p, **s), lambda p, s=settings: hugging_faces(p, **s)
        )
    check_bytes(adafactor, OPTIMIZERS["Adafactor"][1])


def check_sm3(sm3):
    for momentum in (0.0, 0.9):
        check_pair(
            lambda p, m=momentum: sm3(p, 0.1, m), lambda p, m=momentum: their_sm3(p, momentum=m)
        )
    check_bytes(lambda p: sm3(p, 0.1), OPTIMIZERS["SM3-II"][1])
    weight = nn.Parameter(torch.zeros(2, 2, dtype=torch.bfloat16))
    optimizer = sm3([weight], 0.1)
    for _ in range(300):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert optimizer.state[weight]["covers"][0].tolist() == [300, 300]


def check_adam8bit(adam8bit):
    """Small tensors are Adam's; large ones near it, though one gradient is enormous."""
    check_pair(lambda p: adam8bit(p, 1e-2), lambda p: torch.optim.Adam(p, 1e-2))
    start = torch.randn(64, 70, generator=torch.Generator().manual_seed(0))
    results = []
    for make in (lambda p: adam8bit(p, 1e-3, block_size=64), lambda p: torch.optim.Adam(p, 1e-3)):
        weight, generator = nn.Parameter(start.clone()), torch.Generator().manual_seed(1)
        optimizer = make([weight])
        for _ in range(20):
            weight.grad = torch.randn(64, 70, generator=generator)
            weight.grad[0, 0] = 1e6
            optimizer.step()
        results.append(weight.detach())
    found, right, start = (w.flatten()[64:] for w in (*results, start))  # without its block
    # in the decade below the largest, codes are 0.014 of it apart
    assert rms(found - right) < 0.03 * rms(right - start)
    check_bytes(lambda p: adam8bit(p, block_size=256, min_numel=4096), OPTIMIZERS["Adam8bit"][1])


CHECKS = {
    "adam": (check_adam, Adam),
    "adafactor": (check_adafactor, Adafactor),
    "sm3": (check_sm3, SM3),
    "adam8bit": (check_adam8bit, Adam8bit),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_check_notices_the_mutant(name):
    check, _ = CHECKS[MUTANTS[name][0]]
    with pytest.raises((AssertionError, RuntimeError)):  # or shapes do not fit
        check(mutant(name))


@pytest.mark.parametrize(("check", "original"), CHECKS.values(), ids=CHECKS)
def test_it_has_nothing_to_say_of_the_original(check, original):
    check(original)
