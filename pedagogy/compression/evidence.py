"""What compression leaves as evidence: bytes by section and by kind, and errors of weights.

Two kinds of bytes
------------------
A file holds what is left of a network: `sections` adds up its parts. Training holds something else:
`train_as` brings a network into the form in which a method trains it (`without_channels` makes it
thinner), and `held_in_training` runs a step under the memory meter, so that masks, codebooks and
the real weights behind rounded ones are seen. The meter counts what belongs to nobody as
activations; masks are counted as buffers here.

Errors
------
The norm of what changed over the norm of the weight. They are taken without training on, so they
say what is lost at once, not what is lost in the end.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from pedagogy.compression.course import Course, layers_of
from pedagogy.compression.files import Stored, section_bytes
from pedagogy.compression.low_rank import low_rank
from pedagogy.compression.methods import METHODS
from pedagogy.compression.pruning import Masks, magnitude_mask
from pedagogy.compression.quantization import Binary, Quantized, quantize
from pedagogy.compression.sharing import SharedWeight, share_weights
from pedagogy.costs.compression import WAYS
from pedagogy.measure import memory_meter, phase_seconds
from pedagogy.workloads import ConvNet, digits_batch

Curve = tuple[list[int], list[float]]
SPARSITY, NUM_VALUES, BITS = 0.9, 16, 8
_SHARES = {one.setting: one for one in METHODS if one.method == "channels pruned"}


class Held(NamedTuple):
    """Bytes by kind while a network trains: after backward, and at the peak of a step."""

    after_backward: dict[str, int]
    at_peak: dict[str, int]


def sections(stored: Mapping[str, Stored], with_huffman: bool = False) -> dict[str, int]:
    """Bytes by section, over all weights of a state dict; what is not compressed is "others"."""
    total: Counter[str] = Counter()
    for value in stored.values():
        found = section_bytes(value, with_huffman=with_huffman)
        if isinstance(value, Tensor):
            found = {"values" if value.dim() > 1 else "others": sum(found.values())}
        for name, size in found.items():
            total["lengths of codes" if name.endswith("_lengths") else name] += size
    return dict(total)


def train_as(model: nn.Module, way: str) -> Masks:
    """The network computes as it does while `way` trains it on; the masks of pruned layers.

    **Raises** ValueError for a way that `pedagogy.costs.compression` does not know.
    """
    if way not in WAYS:
        raise ValueError(f"no way {way!r}: choose one of {', '.join(WAYS)}")
    masks = Masks()
    for layer in layers_of(model).values():
        if way == "pruned":
            masks.prune([layer.weight], SPARSITY)
        elif way != "full":
            part = _parametrization(layer.weight.detach(), way)
            parametrize.register_parametrization(layer, "weight", part)
    return masks


def _parametrization(weight: Tensor, way: str) -> nn.Module:
    if way in ("quantised", "binary"):
        return Binary() if way == "binary" else Quantized(BITS)
    mask = magnitude_mask(weight, SPARSITY) if way == "pruned and shared" else None
    codebook, indices = share_weights(weight, NUM_VALUES)
    return SharedWeight(codebook, indices, mask)


def without_channels(model: ConvNet, setting: str) -> ConvNet:
    """A thinner copy, not trained on: "50 %" of the channels of each convolution are gone.

    **Raises** ValueError for a share that no method of the frontier has.
    """
    if setting not in _SHARES:
        raise ValueError(f"{setting!r} of the channels: choose one of {', '.join(_SHARES)}")
    return _SHARES[setting].train(copy.deepcopy(model), Course(seed=0, steps=0)).network


@torch.no_grad()
def with_new_statistics(model: nn.Module, images: Tensor) -> nn.Module:
    """A copy whose BatchNorms have the means and variances of these images; no weight changes."""
    new = copy.deepcopy(model)
    for part in new.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.reset_running_stats()
            part.momentum = None  # a plain mean over all batches: there is one
    new.train()(images)
    return new.eval()


def convnets(width: int) -> dict[str, ConvNet]:
    """New networks of `width` channels: full, with 90 % zeros, and with fewer channels."""
    full, sparse = ConvNet(width), ConvNet(width)
    Masks().prune([layer.weight for layer in layers_of(sparse).values()], SPARSITY)
    thinner = {f"{s} of the channels gone": without_channels(full, s) for s in _SHARES}
    return {"full": full, f"{SPARSITY:.0%} zeros": sparse, **thinner}


def held_in_training(model: nn.Module, masks: Masks | None = None, batch: int = 64) -> Held:
    """Bytes by kind in the second step with Adam; the network is trained on the way.

    `after_backward` has the kinds of `costs.compression.training_bytes`, without Adam's counters.
    """
    masks, images = masks or Masks(), digits_batch(batch)
    optimizer = torch.optim.Adam(model.parameters())
    model.loss(*images).backward()
    optimizer.step()
    with memory_meter(model, optimizer) as meter:
        masks.of = {parameter: mask.clone() for parameter, mask in masks.of.items()}
        optimizer.zero_grad()
        model.loss(*images).backward()
        after = dict(meter.now_by_kind)
        optimizer.step()
        masks.apply()
    extra = sum(mask.nbytes for mask in masks.of.values())
    counters = sum(state["step"].nbytes for state in optimizer.state.values())
    kept = {kind: after[kind] for kind in ("parameters", "gradients")}
    kept["optimizer_state"] = after["optimizer_state"] - counters
    kept["masks and indices"] = after["buffers"] + extra
    peak = dict(meter.by_kind)
    return Held(
        kept,
        {**peak, "buffers": peak["buffers"] + extra, "activations": peak["activations"] - extra},
    )


def relative_error(weight: Tensor, changed: Tensor) -> float:
    """The norm of the difference over the norm of the weight."""
    return ((changed - weight).norm() / weight.norm()).item()


@torch.no_grad()
def errors_by_bits(weight: Tensor, bits: Iterable[int]) -> dict[str, Curve]:
    """Relative errors: 2^b - 1 evenly spaced values (from 2 bits on), and 2^b placed by k-means."""
    even, placed = ([], []), ([], [])
    for b in bits:
        if b > 1:
            even[0].append(b)
            even[1].append(relative_error(weight, quantize(weight, b)))
        codebook, indices = share_weights(weight, 2**b)
        placed[0].append(b)
        placed[1].append(relative_error(weight, codebook[indices]))
    return {"evenly spaced": even, "k-means": placed}


@torch.no_grad()
def errors_by_rank(linear: nn.Linear, ranks: Iterable[int]) -> Curve:
    """Relative errors of `low_rank`, from the product of its two matrices."""
    ranks, errors = list(ranks), []
    for rank in ranks:
        first, second = low_rank(linear, rank)
        errors.append(relative_error(linear.weight, second.weight @ first.weight))
    return ranks, errors


def step_seconds(networks: Mapping[str, nn.Module], rounds: int = 6) -> dict[str, float]:
    """The fastest seconds of a training step of each; the networks take turns, and are trained.

    64 digits, Adam. Whatever else the machine does meanwhile is then done to all of them alike.
    """
    adams = {name: torch.optim.Adam(net.parameters()) for name, net in networks.items()}
    found: dict[str, float] = {}
    for _ in range(rounds):
        for name, net in networks.items():
            seconds = sum(phase_seconds(net, adams[name], digits_batch(64), repeats=1).values())
            found[name] = min(seconds, found.get(name, seconds))
    return found
