"""Chapter 00a: what the model states weigh now, and what the second step adds to the first."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pedagogy.costs import memory
from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.prediction import Prediction
from pedagogy.exercises.registry import register
from pedagogy.workloads import GPT


def states_by_kind(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Bytes that parameters, gradients and optimizer state hold now, each tensor once."""
    parameters = list(module.parameters())  # a tied weight comes once
    gradients = [p.grad for p in parameters if p.grad is not None]
    state = [
        value
        for values in optimizer.state.values()
        for value in values.values()
        if isinstance(value, Tensor)
    ]
    held = {"parameters": parameters, "gradients": gradients, "optimizer_state": state}
    return {kind: sum(tensor.nbytes for tensor in tensors) for kind, tensors in held.items()}


def _tied_twice(module, optimizer):
    named = list(module.named_parameters(remove_duplicate=False))
    held = states_by_kind(module, optimizer)
    held["parameters"] = sum(p.nbytes for _, p in named)
    held["gradients"] = sum(p.grad.nbytes for _, p in named if p.grad is not None)
    return held


def _four_bytes_each(module, optimizer):
    parameters = list(module.parameters())
    gradients = [p.grad for p in parameters if p.grad is not None]
    state = [x for one in optimizer.state.values() for x in one.values() if isinstance(x, Tensor)]
    held = {"parameters": parameters, "gradients": gradients, "optimizer_state": state}
    return {kind: 4 * sum(x.numel() for x in tensors) for kind, tensors in held.items()}


def _always_sixteen(module, optimizer):
    count = sum(p.numel() for p in module.parameters())
    return {"parameters": 4 * count, "gradients": 4 * count, "optimizer_state": 8 * count}


def _without_counters(module, optimizer):
    held = states_by_kind(module, optimizer)
    counters = [s["step"] for s in optimizer.state.values() if isinstance(s.get("step"), Tensor)]
    return {**held, "optimizer_state": held["optimizer_state"] - sum(x.nbytes for x in counters)}


def _with_buffers(module, optimizer):
    held = states_by_kind(module, optimizer)
    return {**held, "parameters": held["parameters"] + sum(b.nbytes for b in module.buffers())}


def _gradients_to_come(module, optimizer):
    trained = [p for p in module.parameters() if p.requires_grad]
    return {**states_by_kind(module, optimizer), "gradients": sum(p.nbytes for p in trained)}


def _state_dict(module, optimizer):
    named = module.state_dict()
    held = states_by_kind(module, optimizer)
    return {**held, "parameters": sum(tensor.nbytes for tensor in named.values())}


def _adam_only(module, optimizer):
    moments = [s[name] for s in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    held = states_by_kind(module, optimizer)
    return {**held, "optimizer_state": sum(tensor.nbytes for tensor in moments)}


def _states_case(make, optimizer_class, steps: int, **options):
    """A case: a module and an optimizer after so many steps on a loss that touches all weights."""

    def arguments(rank: int) -> tuple:
        module = make()
        trained = [p for p in module.parameters() if p.requires_grad]
        optimizer = optimizer_class(trained, lr=0.1, **options)
        for _ in range(steps):
            optimizer.zero_grad()
            sum((p * p).sum() for p in trained).backward()
            optimizer.step()
        return module, optimizer

    return arguments


def _tied_gpt() -> nn.Module:
    return GPT(vocabulary=16, layers=1, hidden=8, heads=2, sequence=4)


def _frozen_body() -> nn.Module:
    module = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
    module[0].requires_grad_(False)
    return module


STATES = Exercise(
    name="states_by_kind",
    title="What the model states weigh",
    chapter="00a",
    reference=states_by_kind,
    cases=[
        _states_case(_tied_gpt, torch.optim.Adam, steps=1),
        _states_case(_tied_gpt, torch.optim.Adam, steps=0),
        _states_case(_frozen_body, torch.optim.Adam, steps=2),
        _states_case(lambda: nn.Linear(5, 3).bfloat16(), torch.optim.SGD, steps=1, momentum=0.9),
    ],
    labels=[
        "tied GPT, after a step of Adam",
        "tied GPT, before the first step",
        "frozen layer and BatchNorm, after two steps",
        "bfloat16, after a step with momentum",
    ],
    mistakes=[
        (
            _tied_twice,
            "The tied embedding is counted twice: it is one tensor under two names. "
            "module.parameters() gives it once.",
        ),
        (
            _four_bytes_each,
            "Not every element has 4 bytes: numel() * element_size(), or nbytes, asks the tensor.",
        ),
        (
            _always_sixteen,
            "This is what fp32 training with Adam will hold. Asked is what is there now: before "
            "the first backward no gradient exists, before the first step no moment.",
        ),
        (
            _without_counters,
            "Adam's state also has a step counter for each tensor, a tensor of 4 bytes.",
        ),
        (
            _gradients_to_come,
            "This is what the gradients will weigh. Asked is what is there now: p.grad is None "
            "before the first backward.",
        ),
        (
            _state_dict,
            "state_dict() has one entry for each name: a tied weight comes twice, and buffers "
            "stand among the parameters.",
        ),
        (
            _adam_only,
            "Only Adam calls its state exp_avg and exp_avg_sq; other optimizers keep other things "
            "under other names. Take every tensor that is there.",
        ),
        (_with_buffers, "Buffers are counted as parameters: they have no gradient and no moments."),
    ],
    hints=[
        "Three lists of tensors, then the sum of tensor.nbytes of each.",
        "p.grad is None before the first backward and for a frozen parameter.",
        "optimizer.state is a dict of dicts; some of the inner values are tensors, some are not.",
    ],
)


def _step_sizes() -> dict[str, int]:
    """The GPT whose step the chapter measures."""
    return {"layers": 2, "hidden": 128, "vocabulary": 256, "sequence": 64}


def _second_peak() -> int:
    model = GPT(**_step_sizes())
    held = memory.model_states(memory.gpt_parameters(**_step_sizes()), "fp32")
    return held["optimizer_state"] + 4 * len(list(model.parameters()))


def _moment_bytes(count: int) -> int:
    return count * 4 * memory.gpt_parameters(**_step_sizes())


SECOND_PEAK = Prediction(
    name="second_peak",
    chapter="00a",
    question="By how many bytes is the peak of the second step higher than that of the first?",
    key=_second_peak,
    unit="bytes",
    mistakes=[
        (0, "the first step() makes the moments, and they never leave again."),
        (lambda: _moment_bytes(1), "Adam keeps two numbers for each parameter, not one."),
        (
            lambda: _moment_bytes(4),
            "those are all model states; asked is what the second step adds.",
        ),
        (
            lambda: _moment_bytes(1) // 4,
            "that is the number of parameters; asked are bytes, of two numbers for each.",
        ),
        (lambda: _moment_bytes(3), "the gradients were there in both steps."),
    ],
    because="Two fp32 moments a parameter, and a step counter of 4 bytes a tensor.",
)


register(STATES, SECOND_PEAK)
