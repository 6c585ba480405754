"""Every method of the chapter as one function of a half-trained network.

`train(model, course)` compresses the network, trains it on, and gives back a `Compressed`. A
method that prunes, shares or quantises does so with all layers that multiply matrices; biases and
BatchNorm stay.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from pedagogy.compression.channels import prune_channels
from pedagogy.compression.course import Compressed, Course, finish, layers_of
from pedagogy.compression.distillation import distillation_loss
from pedagogy.compression.files import Packed, Shared, Sparse
from pedagogy.compression.low_rank import low_rank
from pedagogy.compression.pruning import Masks, prune_kernels, rising_sparsity
from pedagogy.compression.quantization import Binary, Quantized, clamp_latent, sign, to_integers
from pedagogy.compression.sharing import SharedWeight, share_weights
from pedagogy.workloads import MLP

STUDENT, TEMPERATURE, ALPHA = (64, 32, 10), 4.0, 0.9


class Method(NamedTuple):
    """A row of the frontier: its name, how strong, on which network, and the function."""

    method: str
    setting: str
    network: str
    train: Callable[[nn.Module, Course], Compressed]


def _full(model: nn.Module, course: Course) -> Compressed:
    course.run(model, course.half, course.steps)
    return finish(model)


def _pruned(model: nn.Module, course: Course, sparsity: float, num_times: int = 1) -> Compressed:
    """At once, or in several times over the first half of the steps that are left."""
    layers, masks = layers_of(model), Masks()
    weights = [layer.weight for layer in layers.values()]
    schedule = iter(rising_sparsity(sparsity, num_times))
    interval = max(1, (course.steps - course.half) // 2 // num_times)
    masks.prune(weights, next(schedule))

    def after_step(step: int) -> None:
        if (step + 1 - course.half) % interval == 0:
            now = next(schedule, None)
            if now is not None:
                masks.prune(weights, now)
        masks.apply()

    course.run(model, course.half, course.steps, after_step)
    return finish(model, "pruned", {n: Sparse(layer.weight) for n, layer in layers.items()})


def _pruned_kernels(model: nn.Module, course: Course, fraction: float) -> Compressed:
    convolutions = {n: m for n, m in layers_of(model).items() if isinstance(m, nn.Conv2d)}
    masks = Masks({m.weight: prune_kernels(m, fraction) for m in convolutions.values()})
    course.run(model, course.half, course.steps, lambda step: masks.apply())
    sparse = {name: Sparse(m.weight) for name, m in convolutions.items()}
    return finish(model, "pruned", sparse, with_huffman=True)


def _pruned_channels(model: nn.Module, course: Course, fraction: float) -> Compressed:
    features = model.features
    places = [i for i, part in enumerate(features) if isinstance(part, nn.Conv2d)]
    for place, after in zip(places, [*places[1:], None], strict=True):
        following = model.classifier if after is None else features[after]
        shrunk = prune_channels(features[place], following, fraction, features[place + 1])
        features[place], features[place + 1] = shrunk.convolution, shrunk.norm
        if after is None:
            model.classifier = shrunk.following
        else:
            features[after] = shrunk.following
    return _full(model, course)


def _shared(
    model: nn.Module, course: Course, num_values: int, sparsity: float | None = None
) -> Compressed:
    """With a sparsity it is Deep Compression: pruned, trained, shared, trained, Huffman coded."""
    layers, masks, first = layers_of(model), Masks(), course.half
    if sparsity is not None:
        masks.prune([layer.weight for layer in layers.values()], sparsity)
        first = (course.half + course.steps) // 2
        course.run(model, course.half, first, lambda step: masks.apply())
    parts = {}
    for name, layer in layers.items():
        mask = masks.of.get(layer.weight, torch.ones_like(layer.weight))
        codebook, kept_indices = share_weights(layer.weight[mask != 0], num_values)
        indices = torch.zeros_like(mask, dtype=torch.int64)
        indices[mask != 0] = kept_indices
        parts[name] = SharedWeight(codebook, indices, None if sparsity is None else mask)
        parametrize.register_parametrization(layer, "weight", parts[name])
    course.run(model, first, course.steps)
    stored = {
        name: Shared(
            torch.ones_like(p.indices) if p.mask is None else p.mask, p.codebook, p.indices
        )
        for name, p in parts.items()
    }
    way = "shared" if sparsity is None else "pruned and shared"
    return finish(model, way, stored, sparsity is not None, num_values=num_values * len(layers))


def _low_rank(model: nn.Module, course: Course, rank: int) -> Compressed:
    """The last layer has 10 outputs: it stays."""
    last = model.layers[-1]
    parts = [low_rank(m, rank) if isinstance(m, nn.Linear) else m for m in model.layers[:-1]]
    model.layers = nn.Sequential(*parts, last)
    return _full(model, course)


def _quantised(model: nn.Module, course: Course, bits: int) -> Compressed:
    layers = layers_of(model)
    for layer in layers.values():
        parametrize.register_parametrization(layer, "weight", Quantized(bits))
    course.run(model, course.half, course.steps)
    latent = {n: layer.parametrizations.weight.original for n, layer in layers.items()}
    packed = {name: Packed(*to_integers(weight, bits), bits) for name, weight in latent.items()}
    return finish(model, "quantised", packed)


def _binary(model: nn.Module, course: Course) -> Compressed:
    layers = layers_of(model)
    for layer in layers.values():
        parametrize.register_parametrization(layer, "weight", Binary())
    course.run(model, course.half, course.steps, lambda step: clamp_latent(model))
    packed = {}
    for name, layer in layers.items():
        latent = layer.parametrizations.weight.original.detach()
        packed[name] = Packed(sign(latent), latent.abs().mean(1, keepdim=True), 1)
    return finish(model, "binary", packed)


def _student(model: nn.Module, course: Course, temperature: float | None = None) -> Compressed:
    """Alone; or taught, at a temperature, by the full network after all of its steps."""
    if temperature is not None:
        course.run(model, course.half, course.steps)
    teacher = model.eval().requires_grad_(False)
    torch.manual_seed(course.seed)
    student = MLP(STUDENT)
    if temperature is None:
        course.run(student, 0, course.steps)
        return finish(student)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        return distillation_loss(student(images), teacher(images), labels, temperature, ALPHA)

    course.run(student, 0, course.steps, loss=loss)
    return finish(student, teacher=sum(p.numel() for p in teacher.parameters()))


METHODS = [
    Method("full", "MLP", "MLP", _full),
    Method("connections pruned", "80 %", "MLP", partial(_pruned, sparsity=0.8)),
    Method("connections pruned", "90 %", "MLP", partial(_pruned, sparsity=0.9)),
    Method("connections pruned", "95 %", "MLP", partial(_pruned, sparsity=0.95)),
    Method(
        "connections pruned",
        "95 %, in 5 steps",
        "MLP",
        partial(_pruned, sparsity=0.95, num_times=5),
    ),
    Method("shared", "4 values", "MLP", partial(_shared, num_values=4)),
    Method("shared", "16 values", "MLP", partial(_shared, num_values=16)),
    Method(
        "Deep Compression", "90 %, 16 values", "MLP", partial(_shared, num_values=16, sparsity=0.9)
    ),
    Method("low rank", "8", "MLP", partial(_low_rank, rank=8)),
    Method("low rank", "16", "MLP", partial(_low_rank, rank=16)),
    Method("quantised", "16 bits", "MLP", partial(_quantised, bits=16)),
    Method("quantised", "8 bits", "MLP", partial(_quantised, bits=8)),
    Method("quantised", "4 bits", "MLP", partial(_quantised, bits=4)),
    Method("binary", "1 bit", "MLP", _binary),
    Method("student", "alone", "MLP", _student),
    Method("student", "distilled", "MLP", partial(_student, temperature=TEMPERATURE)),
    Method("full", "ConvNet", "ConvNet", _full),
    Method("kernels pruned", "50 %", "ConvNet", partial(_pruned_kernels, fraction=0.5)),
    Method("kernels pruned", "75 %", "ConvNet", partial(_pruned_kernels, fraction=0.75)),
    Method("channels pruned", "25 %", "ConvNet", partial(_pruned_channels, fraction=0.25)),
    Method("channels pruned", "50 %", "ConvNet", partial(_pruned_channels, fraction=0.5)),
    Method("channels pruned", "75 %", "ConvNet", partial(_pruned_channels, fraction=0.75)),
    Method("quantised", "8 bits", "ConvNet", partial(_quantised, bits=8)),
    Method("quantised", "4 bits", "ConvNet", partial(_quantised, bits=4)),
]
