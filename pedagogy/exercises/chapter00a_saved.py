"""Chapter 00a: a small meter for what forward keeps, and the FLOPs of one layer.

A storage is what holds bytes, and tensors are views of it: bytes are counted by storage.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pedagogy.exercises.engine import Exercise
from pedagogy.exercises.prediction import Prediction
from pedagogy.exercises.registry import register
from pedagogy.measure import count_flops
from pedagogy.workloads import GPT


def saved_bytes(module: nn.Module, x: Tensor) -> int:
    """Bytes that `module(x)` keeps for backward; what was there before (x, weights) is not new.

    A storage counts once and whole, however many tensors of it are kept.
    """
    there = (*module.parameters(), *module.buffers(), x)
    known = {tensor.untyped_storage().data_ptr() for tensor in there}
    kept = {}  # address of the storage -> bytes

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = module(x)  # as long as it lives, no address is used twice
    del output
    return sum(kept.values())


def _saved_tensors(module: nn.Module, x: Tensor) -> list[Tensor]:
    saved: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        module(x)
    return saved


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _each_tensor(module, x):
    known = {_address(t) for t in (*module.parameters(), *module.buffers(), x)}
    return sum(t.nbytes for t in _saved_tensors(module, x) if _address(t) not in known)


def _weights_too(module, x):
    storages = {_address(t): t.untyped_storage() for t in _saved_tensors(module, x)}
    return sum(s.nbytes() for address, s in storages.items() if address != _address(x))


def _input_too(module, x):
    known = {_address(t) for t in (*module.parameters(), *module.buffers())}
    storages = {_address(t): t.untyped_storage() for t in _saved_tensors(module, x)}
    return sum(s.nbytes() for address, s in storages.items() if address not in known)


def _buffers_too(module, x):
    known = {_address(t) for t in (*module.parameters(), x)}
    storages = {_address(t): t.untyped_storage() for t in _saved_tensors(module, x)}
    return sum(s.nbytes() for address, s in storages.items() if address not in known)


def _every_note(module, x):
    return sum(t.nbytes for t in _saved_tensors(module, x))


def _view_not_storage(module, x):
    known = {_address(t) for t in (*module.parameters(), *module.buffers(), x)}
    tensors = {_address(t): t for t in _saved_tensors(module, x)}
    return sum(t.nbytes for address, t in tensors.items() if address not in known)


class Gated(nn.Module):
    """A gate as in many recent models: half of the features multiply the other half."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.expand = nn.Linear(width, 6 * width)

    def forward(self, x: Tensor) -> Tensor:
        """The two halves are views of one storage."""
        value, gate = self.expand(x).split([x.size(-1) * 3] * 2, dim=-1)
        return value * torch.sigmoid(gate)


def _saved_case(make, *shape: int):
    def arguments(rank: int) -> tuple:
        return make(), torch.ones(*shape)

    return arguments


def _block() -> nn.Module:
    return GPT(layers=1, hidden=8, heads=2, sequence=6).blocks[0]


def _two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 4))


def _three_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))


SAVED = Exercise(
    name="saved_bytes",
    title="A meter for what forward keeps",
    chapter="00a",
    reference=saved_bytes,
    cases=[
        _saved_case(_two_layers, 3, 4),
        _saved_case(_three_layers, 5, 4),
        _saved_case(lambda: Gated(4), 2, 4),
        _saved_case(_block, 2, 6, 8),
    ],
    labels=["two layers and GELU", "three layers", "a gate of two halves", "a block of the GPT"],
    mistakes=[
        (
            _each_tensor,
            "Some storages are counted more than once: GELU's output and the input of the next "
            "layer are the same bytes, saved under two notes.",
        ),
        (
            _weights_too,
            "The weights are counted: a linear layer notes its weight for backward, but nobody "
            "made a copy; those bytes were there before.",
        ),
        (
            _every_note,
            "This is the sum over all notes of autograd: weights and input, which were there "
            "before, are in it, and one storage may be noted twice. Count storages, new ones only.",
        ),
        (
            _buffers_too,
            "A buffer is counted: the causal mask is saved for backward, and was there before.",
        ),
        (_input_too, "The input x is counted, and it was there before forward."),
        (
            _view_not_storage,
            "A view is counted with its own size, but it keeps its whole storage alive: half of "
            "a split tensor holds both halves.",
        ),
    ],
    hints=[
        "torch.autograd.graph.saved_tensors_hooks(pack, unpack) calls pack for each saved tensor.",
        "tensor.untyped_storage() has data_ptr(), an address that names it, and nbytes().",
        "Collect the addresses of parameters, buffers and x first, and leave those out.",
        "Hold the output until you have counted: it holds the graph, and the graph the storages.",
    ],
)


def _linear_flops() -> int:
    layer = nn.Linear(3, 4, bias=False)
    x = torch.ones(5, 3, requires_grad=True)
    return count_flops(lambda: layer(x).sum().backward())


LINEAR_FLOPS = Prediction(
    name="linear_flops",
    chapter="00a",
    question="A 3 -> 4 layer without bias, 5 tokens, forward and backward: how many FLOPs?",
    key=_linear_flops,
    unit="FLOPs",
    mistakes=[
        (120, "that is forward alone: 2 for each of 12 weights and 5 tokens."),
        (240, "backward makes two products: the gradient of the weight and that of the input."),
        (60, "those are the meetings of 12 weights and 5 tokens: each is 2 FLOPs, three times."),
        (180, "a multiply and an add are two FLOPs."),
    ],
    because="6 for each parameter and token: 2 in forward, 4 in backward.",
)

register(SAVED, LINEAR_FLOPS)
