"""What the optimizers leave as evidence: losses of the same GPT, and the gradients behind v.

The same GPT under each
-----------------------
`train` runs one of `RUNS` on the small GPT: same initial weights, same text, another optimizer.
Each has the best learning rate of a coarse search (factors of 2 or so), since one rate for all
would compare the rates; `Adam8bit` takes Adam's. Adafactor runs a second time with a number for
each element, `Unfactored`: that shows what factoring costs. `recorded_curves` are 400 steps over
three seeds, which take minutes. To make them again:

    python -m pedagogy.optimizers.evidence

Another machine gives other digits: rounding differs, and training amplifies it.

The truth behind an estimate
----------------------------
`record_gradients` keeps what some matrices of that GPT saw while Adam trained it.
`second_moments` runs over them with Adafactor's rates twice: once keeping every element, once rows
and columns, so that the two differ in nothing but the factoring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Adagrad, Optimizer

from pedagogy.measure import read_recording, write_recording
from pedagogy.optimizers.adafactor import Adafactor, second_moment
from pedagogy.optimizers.adam import Adam
from pedagogy.optimizers.adam8bit import Adam8bit
from pedagogy.optimizers.sm3 import SM3
from pedagogy.workloads import GPT, text_batch


class Unfactored(Adafactor):
    """Adafactor with a number for each element, and nothing else changed.

    A vector is not factored, so each parameter is handed over as one; sizes (RMS) stay.
    **Memory** 4 bytes for each parameter.
    """

    def update(
        self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        """As `Adafactor`, on a view of (elements,)."""
        super().update(parameter.view(-1), gradient.reshape(-1), state, group)


SIZES = {"layers": 2, "hidden": 64, "heads": 4, "sequence": 64}
BATCH, RECORDED_STEPS, SEEDS = 8, 400, (0, 1, 2)
RUNS: dict[str, Callable[[Iterable], Optimizer]] = {
    "Adam": lambda p: Adam(p, lr=2e-3),
    "Adam without m": lambda p: Adam(p, lr=1e-3, betas=(0.0, 0.999)),
    "Adafactor": lambda p: Adafactor(p, lr=2e-2, relative_step=False),
    "Adafactor unfactored": lambda p: Unfactored(p, lr=2e-2, relative_step=False),
    "SM3": lambda p: SM3(p, lr=5e-3),
    "Adagrad": lambda p: Adagrad(p, lr=5e-3),
    "Adam8bit": lambda p: Adam8bit(p, lr=2e-3),
}
MATRICES = {
    "embedding": "token.weight",
    "query": "blocks.0.attention.query.weight",
    "expand": "blocks.1.feed_forward.expand.weight",
}
_CURVES = "recorded_curves.csv"


class Trained(NamedTuple):
    """A run: its losses (steps,) in nats, and what it left."""

    losses: Tensor
    model: nn.Module
    optimizer: Optimizer


def train(
    make: Callable[[Iterable], Optimizer],
    steps: int,
    seed: int = 0,
    watch: Callable[[nn.Module], None] = lambda model: None,
    device: str = "cpu",
) -> Trained:
    """The small GPT after `steps` updates; `watch(model)` is called before each of them."""
    torch.manual_seed(seed)
    model = GPT(**SIZES).to(device)
    optimizer, losses = make(model.parameters()), []
    for step in range(steps):
        batch = text_batch(BATCH, SIZES["sequence"], seed=seed, step=step)
        loss = model.loss(*(part.to(device) for part in batch))
        loss.backward()
        watch(model)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return Trained(torch.stack(losses), model, optimizer)


def same_weights(mine: Trained, right: Trained, tolerance: float = 1e-5) -> bool:
    """Whether all weights agree, the keys' biases left out.

    Softmax cancels a key's bias, so its gradient is rounding alone, and an optimizer that divides
    by a gradient's size makes whole steps of that.
    """
    pairs = zip(mine.model.named_parameters(), right.model.parameters(), strict=True)
    gaps = [(a - b).abs().max() for (name, a), b in pairs if not name.endswith("key.bias")]
    return bool(max(gaps) <= tolerance)


def record_gradients(steps: int = 60) -> dict[str, list[Tensor]]:
    """For each of `MATRICES` its gradient in each step of `RUNS["Adam"]`: (n, m) each."""
    seen: dict[str, list[Tensor]] = {name: [] for name in MATRICES}

    def watch(model: nn.Module) -> None:
        for name, place in MATRICES.items():
            seen[name].append(model.get_parameter(place).grad.clone())

    train(RUNS["Adam"], steps, watch=watch)
    return seen


class Moments(NamedTuple):
    """The second moment, all (n, m): every element kept; from rows and columns."""

    true: Tensor
    factored: Tensor


def second_moments(gradients: Sequence[Tensor], decay: float = 0.8, eps: float = 1e-30) -> Moments:
    """v after these gradients, with Adafactor's rates 1 - t^-decay.

    **Raises** ValueError without a gradient.
    """
    if not gradients:
        raise ValueError("no gradient was recorded: at least 1 is needed")
    true, state = torch.zeros_like(gradients[0]), {}
    for step, gradient in enumerate(gradients, start=1):
        square, kept = gradient.square() + eps, 1 - step**-decay
        true = true.lerp(square, 1 - kept)
        factored = second_moment(square, state, kept)
    return Moments(true, factored)


def best_rank_one(matrix: Tensor) -> Tensor:
    """The matrix of rank 1 that is nearest, by the singular value decomposition: (n, m)."""
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    return (values[0] * torch.outer(left[:, 0], right[0])).to(matrix.dtype)


def relative_error(estimate: Tensor, true: Tensor) -> float:
    """The norm of the difference as a share of the truth's."""
    return ((estimate - true).norm() / true.norm()).item()


def near_share(estimate: Tensor, true: Tensor, factor: float = 2.0) -> float:
    """The share of elements that are within a factor of the truth."""
    ratio = estimate / true
    return ((ratio <= factor) & (ratio >= 1 / factor)).float().mean().item()


def recorded_curves() -> dict[str, Tensor]:
    """Losses of `RUNS` in nats, over three seeds: (seeds, steps). See `provenance`."""
    by_name: dict[str, list[list[float]]] = {}
    for name, _, *losses in read_recording("pedagogy.optimizers", _CURVES).rows:
        by_name.setdefault(name, []).append([float(loss) for loss in losses])
    return {name: torch.tensor(runs) for name, runs in by_name.items()}


def provenance() -> str:
    """How, when and on what the recorded runs were made."""
    return read_recording("pedagogy.optimizers", _CURVES).provenance


def record_curves(path: Path, seeds: Iterable[int] = SEEDS, steps: int = RECORDED_STEPS) -> None:
    """Train again and write the file. It takes minutes."""
    seeds = list(seeds)
    rows = (
        [name, seed, *train(make, steps, seed).losses.tolist()]
        for name, make in RUNS.items()
        for seed in seeds
    )
    how = f"pedagogy.optimizers.evidence.train(RUNS[name], {steps}, seed), seeds {seeds}"
    write_recording(path, f"{how}: loss of each step in nats", rows)


if __name__ == "__main__":
    torch.set_num_threads(1)
    record_curves(Path(__file__).with_name(_CURVES))
