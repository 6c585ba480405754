"""One helper that proves equality with one process; every synchronous technique is held to it.

A `Problem` is a model, an optimizer and data. `one_process` trains it alone; a technique trains it
on several ranks. Both write a `History`: in every step the outputs, the gradients and the weights.
`assert_equal_to_one_process` compares them.

What makes the comparison sharp: at least three steps (a wrong optimizer state shows in the second);
an optimizer with state; ranks that are seeded differently, so that a forgotten broadcast shows; a
global batch that does not depend on the number of ranks; models with tied, frozen and unused
parameters and with sizes that no number of ranks divides.

A technique for replicas is a function `technique(group, model, optimizer)` that returns what to use
in their place and what to call after backward: (model, optimizer, after_backward). Techniques that
cut the model bring a worker of their own, `worker(group, problem, steps) -> History`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pedagogy.ranks import launch
from pedagogy.workloads import GPT, text_batch

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
BATCH = 12  # divisible by 1, 2, 3 and 4


@dataclass
class Problem:
    """What is trained. `batch(step)` is the global batch; a rank takes its slice of it."""

    name: str
    make_model: Callable[[], nn.Module]
    make_optimizer: Callable[[Any], torch.optim.Optimizer]
    batch: Callable[[int], tuple[Tensor, Tensor]]
    loss: Callable[[Tensor, Tensor], Tensor]
    dtype: torch.dtype = torch.float64

    def model(self, rank: int = 0) -> nn.Module:
        """The model; other initial weights on each rank, those of one process on rank 0."""
        torch.manual_seed(7 + rank)
        return self.make_model().to(self.dtype)


@dataclass
class History:
    """What happened, by step; a technique that cannot tell leaves a list empty."""

    outputs: list[Tensor] = field(default_factory=list)
    gradients: list[dict[str, Tensor | None]] = field(default_factory=list)
    weights: list[dict[str, Tensor]] = field(default_factory=list)

    def note(self, output: Tensor, model: nn.Module) -> None:
        """Write down a step: after the optimizer's step, before the gradients are cleared."""
        named = list(model.named_parameters())
        self.outputs.append(output.detach().clone())
        self.gradients.append({n: None if p.grad is None else p.grad.clone() for n, p in named})
        self.weights.append({name: p.detach().clone() for name, p in named})


def one_process(problem: Problem, steps: int = 3) -> History:
    """The truth: the whole batch, one model, no communication."""
    model = problem.model()
    optimizer = problem.make_optimizer(model.parameters())
    history = History()
    for step in range(steps):
        inputs, targets = problem.batch(step)
        output = model(inputs)
        problem.loss(output, targets).backward()
        optimizer.step()
        history.note(output, model)
        optimizer.zero_grad()
    return history


def train_replicas(group: Any, problem: Problem, steps: int, technique: Callable) -> History:
    """Train with `technique`: each rank on its slice of the batch, with the slice's mean loss."""
    model = problem.model(group.rank)
    optimizer = problem.make_optimizer(model.parameters())
    wrapped, optimizer, after_backward = technique(group, model, optimizer)
    history = History()
    for step in range(steps):
        inputs, targets = (t.chunk(group.size)[group.rank] for t in problem.batch(step))
        output = wrapped(inputs)
        problem.loss(output, targets).backward()
        after_backward()
        optimizer.step()
        history.note(output, model)
        optimizer.zero_grad()
    return history


def differences(expected: History, ranks: Sequence[History], dtype: torch.dtype) -> list[str]:
    """Where the ranks' histories depart from the expected one, step by step; empty if nowhere."""
    found = []
    if any(history.outputs for history in ranks):
        outputs = [torch.cat(parts) for parts in zip(*(h.outputs for h in ranks), strict=True)]
        for step, pair in enumerate(zip(outputs, expected.outputs, strict=True)):
            found += _compare(f"step {step}: output", *pair, dtype)
    for rank, history in enumerate(ranks):
        for kind in ("gradients", "weights"):
            if not getattr(history, kind):
                continue
            steps = zip(getattr(history, kind), getattr(expected, kind), strict=True)
            for step, (actual, right) in enumerate(steps):
                if actual.keys() != right.keys():
                    found.append(f"step {step}, rank {rank}: {kind} of other parameters")
                    continue
                for name, value in right.items():
                    where = f"step {step}, rank {rank}: {kind} of {name}"
                    found += _compare(where, actual[name], value, dtype)
    return sorted(found, key=lambda text: int(text.split()[1].rstrip(",:")))


def assert_equal_to_one_process(
    worker: Callable, problem: Problem, world_size: int, *arguments: Any, steps: int = 3
) -> None:
    """`worker(group, problem, steps, *arguments) -> History` on the ranks equals one process."""
    run = launch(worker, world_size, problem, steps, *arguments)
    found = differences(one_process(problem, steps), list(run), problem.dtype)
    if found:
        shown = "\n  ".join(found[:8])
        raise AssertionError(f"{problem.name}: {len(found)} differences, first:\n  {shown}")


def _compare(
    where: str, actual: Tensor | None, expected: Tensor | None, dtype: torch.dtype
) -> list[str]:
    if actual is None or expected is None:
        return [] if actual is expected else [f"{where}: {actual} is not {expected}"]
    if actual.shape != expected.shape:
        return [f"{where}: shape {tuple(actual.shape)} is not {tuple(expected.shape)}"]
    scale = max(expected.abs().max().item(), 1e-3) if expected.numel() else 1.0
    error = (actual - expected).abs().max().item() / scale if expected.numel() else 0.0
    return [] if error <= TOLERANCE[dtype] else [f"{where}: off by {error:.2e} of the largest"]


# --- problems ------------------------------------------------------------------------------------


class Awkward(nn.Module):
    """Odd sizes, a frozen layer, a layer that is never used, two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(7, 5)
        self.frozen = nn.Linear(5, 5).requires_grad_(False)
        self.unused = nn.Linear(3, 11)
        self.middle = nn.Linear(5, 5, bias=False)
        self.again = nn.Linear(5, 5, bias=False)
        self.again.weight = self.middle.weight
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.leave = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch."""
        x = torch.tanh(self.frozen(torch.tanh(self.enter(x))))
        x = torch.tanh(self.again(torch.tanh(self.middle(x))))
        return self.leave(x * self.scale)


def awkward_batch(step: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Random inputs of 7 values and one of 3 classes; the same for every number of ranks."""
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(BATCH, 7, generator=generator, dtype=dtype)
    return inputs, torch.randint(3, (BATCH,), generator=generator)


def float_batch(step: int) -> tuple[Tensor, Tensor]:
    """`awkward_batch` in float32."""
    return awkward_batch(step, torch.float32)


def gpt() -> nn.Module:
    """A GPT of odd sizes with tied embeddings and frozen positions."""
    model = GPT(vocabulary=256, layers=2, hidden=10, heads=2, sequence=7)
    model.position.weight.requires_grad_(False)
    return model


def gpt_batch(step: int) -> tuple[Tensor, Tensor]:
    """Text in windows of 7 bytes."""
    return text_batch(BATCH, 7, step=step)


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy over the positions."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def momentum(parameters: Any) -> torch.optim.Optimizer:
    """SGD with momentum and weight decay: its state shows in the second step."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    """AdamW; the large epsilon keeps rounding errors of tiny gradients small."""
    return torch.optim.AdamW(parameters, lr=0.01, eps=1e-4)


AWKWARD = Problem("awkward", Awkward, adamw, awkward_batch, functional.cross_entropy)
AWKWARD_FLOAT32 = Problem(
    "awkward in float32", Awkward, momentum, float_batch, functional.cross_entropy, torch.float32
)
TIED_GPT = Problem("tied GPT", gpt, momentum, gpt_batch, token_loss)
PROBLEMS = [AWKWARD, AWKWARD_FLOAT32, TIED_GPT]
