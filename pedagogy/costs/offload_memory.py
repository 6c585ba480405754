"""What device, host and link carry when our GPT trains with Adam in fp32, offloaded or not.

Three techniques, alone or together:

    parameters     the layers' weights, their gradients and states; the device holds `prefetch` + 1
                   layers at most. Token, position and last norm stay: the token table is tied
    optimizer      all gradients and states, and a second copy of the weights to update
    activations    what autograd saves, in pieces of `MIN_BYTES` or more

Moments of a step, from the second on. A layer is 4 (12 h^2 + 13 h) bytes; what stays beside the
layers is 4 (V h + s h + 2 h).

    at rest              no layer, no activation
    after forward        all activations; 1 layer, or `prefetch`: those of the next uses
    start of backward    and two tensors of s b V
    update               all gradients that are the device's own, no activation

The host's gradients are kept in fp32 here, so it holds 16 bytes a parameter, where ZeRO-Offload's,
in 16 bits, are 14.

Not modelled: buffers, and a link that lags: the forms hold where copies out have ended.
Source: the arithmetic is elementary; tests hold it to the memory meter and to the link's counters.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from pedagogy.costs.memory import gpt_activation_bytes, gpt_parameters

TECHNIQUES = ("parameters", "optimizer", "activations")
MIN_BYTES = 1024  # smaller tensors are not worth a copy
_TENSORS_OF_LAYER, _TENSORS_STAYING = 16, 4  # Adam's step counters: 4 bytes for each tensor


def _states(weight_bytes: int, layers: int, others: int) -> int:
    """Adam's moments and step counters."""
    return 2 * weight_bytes + 4 * (_TENSORS_OF_LAYER * layers + others)


class _Model(NamedTuple):
    """Sizes of a GPT and what of it is offloaded."""

    offloaded: frozenset[str]
    layers: int
    hidden: int
    heads: int
    sequence: int
    batch: int
    prefetch: int
    vocabulary: int

    @property
    def layer_bytes(self) -> int:
        return 4 * (12 * self.hidden**2 + 13 * self.hidden)

    @property
    def all_bytes(self) -> int:
        return 4 * gpt_parameters(self.layers, self.hidden, self.vocabulary, self.sequence)

    @property
    def moving_bytes(self) -> int:
        """Weights that are not on the device at rest."""
        return self.layers * self.layer_bytes if "parameters" in self.offloaded else 0

    @property
    def logits_bytes(self) -> int:
        return 4 * self.sequence * self.batch * self.vocabulary


def layers_held(layers: int, prefetch: int) -> int:
    """How many layers the device holds at most: `prefetch` + 1, or all."""
    return min(layers, prefetch + 1)


def layer_copies(layers: int, prefetch: int) -> int:
    """Copies of a layer to the device in a step: 2 L - min(L, prefetch // 2 + 1).

    Forward needs all; what the device still holds when backward comes to it needs none: the last
    layer, and one more for each two of prefetch.
    **Raises** ValueError for no layer, or a negative prefetch.
    """
    if layers < 1 or prefetch < 0:
        raise ValueError(f"{layers} layers, prefetch {prefetch}: at least 1 and 0")
    return 2 * layers - min(layers, prefetch // 2 + 1)


def gpt_moments(
    offloaded: Collection[str],
    layers: int,
    hidden: int,
    heads: int,
    sequence: int,
    batch: int,
    prefetch: int = 1,
    vocabulary: int = 256,
) -> dict[str, dict[str, int]]:
    """The device's bytes by kind at the four moments above.

    `offloaded`: any of `TECHNIQUES`. **Raises** ValueError for another, or a size out of range.
    """
    model = _model(offloaded, layers, hidden, heads, sequence, batch, prefetch, vocabulary)
    staying = model.all_bytes - model.moving_bytes
    rest = {
        "parameters": staying,
        "gradients": 0,
        "optimizer_state": _device_states(model),
        "activations": 0,
    }
    held = staying
    if model.moving_bytes:
        held += min(layers, max(1, prefetch)) * model.layer_bytes
    forward = {**rest, "parameters": held, "activations": _kept(model)}
    backward = {**forward, "activations": _kept(model) + _returned(model) + 2 * model.logits_bytes}
    own = 0 if "optimizer" in model.offloaded else staying
    return {
        "at rest": rest,
        "after forward": forward,
        "start of backward": backward,
        "update": {**rest, "gradients": own},
    }


def gpt_device_bytes(
    offloaded: Collection[str],
    layers: int,
    hidden: int,
    heads: int,
    sequence: int,
    batch: int,
    prefetch: int = 1,
    vocabulary: int = 256,
) -> dict[str, int]:
    """The device's bytes by kind at the peak of a step: what must fit.

    Exact with prefetch 0 and activations on the device. With prefetch, `layers_held` layers are
    counted beside the start of backward, though they meet a little later: slightly too much (less
    than 3 s b V elements). With activations offloaded it is the *least*: the loss, or what the
    backward of a layer works on, V h + 13 s b h elements; copies under way come on top.
    **Raises** as `gpt_moments` does.
    """
    model = _model(offloaded, layers, hidden, heads, sequence, batch, prefetch, vocabulary)
    moments = gpt_moments(offloaded, layers, hidden, heads, sequence, batch, prefetch, vocabulary)
    backward, update = moments["start of backward"], moments["update"]
    inside = dict(backward)
    if model.moving_bytes:
        held = layers_held(layers, prefetch) * model.layer_bytes
        inside["parameters"] = update["parameters"] + held
    if "activations" in model.offloaded:
        working = 4 * hidden * (vocabulary + 13 * sequence * batch)
        inside["activations"] = _kept(model) + working - 8 * sequence * batch  # last statistics
    return max(backward, inside, update, key=lambda held: sum(held.values()))


def gpt_host_bytes(
    offloaded: Collection[str],
    layers: int,
    hidden: int,
    heads: int,
    sequence: int,
    batch: int,
    prefetch: int = 1,
    vocabulary: int = 256,
) -> dict[str, int]:
    """The host's bytes by kind, each at its most. **Raises** as `gpt_moments` does."""
    model = _model(offloaded, layers, hidden, heads, sequence, batch, prefetch, vocabulary)
    everything = "optimizer" in model.offloaded
    weights = model.all_bytes if everything else model.moving_bytes
    tensors = (layers if weights else 0, _TENSORS_STAYING if everything else 0)
    return {
        "parameters": weights,
        "gradients": weights,
        "optimizer_state": _states(weights, *tensors),
        "activations": sum(_sent(model)),
    }


def gpt_link_bytes(
    offloaded: Collection[str],
    layers: int,
    hidden: int,
    heads: int,
    sequence: int,
    batch: int,
    prefetch: int = 1,
    vocabulary: int = 256,
) -> dict[str, int]:
    """Bytes over the link in a step, each way.

    Weights to the device: `layer_copies` layers, and after the update what is there at rest;
    gradients to the host; activations both ways. **Raises** as `gpt_moments` does.
    """
    model = _model(offloaded, layers, hidden, heads, sequence, batch, prefetch, vocabulary)
    both = model.all_bytes - model.moving_bytes if "optimizer" in model.offloaded else 0
    both += sum(_sent(model))
    layer = model.layer_bytes if model.moving_bytes else 0
    copied = layer * layer_copies(layers, prefetch)
    return {"to_device": copied + both, "to_host": layer * layers + both}


def _model(offloaded: Collection[str], *sizes: int) -> _Model:
    if wrong := set(offloaded) - set(TECHNIQUES):
        raise ValueError(f"cannot offload {sorted(wrong)}: choose among {', '.join(TECHNIQUES)}")
    model = _Model(frozenset(offloaded), *sizes)
    if min(*sizes[:5], model.vocabulary) < 1 or model.prefetch < 0:
        raise ValueError(f"{model[1:]}: sizes must be 1 or more, and prefetch 0 or more")
    return model


def _device_states(model: _Model) -> int:
    if "optimizer" in model.offloaded:
        return 0
    layers = 0 if model.moving_bytes else model.layers
    return _states(model.all_bytes - model.moving_bytes, layers, _TENSORS_STAYING)


def _saved(model: _Model) -> list[int]:
    """Bytes of the tensors that forward saves and that are large enough to go, in that order."""
    s, b = model.sequence, model.batch
    h = 4 * s * b * model.hidden
    statistics, ids, mask = 4 * s * b, 8 * s * b, s * s
    norm, scores = [h, statistics, statistics], 4 * model.heads * s * s * b
    attention = [h, h, h, mask, scores, h, h]  # input, q, k, the mask, probabilities, v, mixed
    layer = [*norm, *attention, *norm, h, 4 * h, 4 * h]  # ..., input, before GELU, after it
    tensors = [ids, *model.layers * layer, *norm, h, model.logits_bytes, ids]
    return [size for size in tensors if size >= MIN_BYTES]


def _sent(model: _Model) -> list[int]:
    return _saved(model) if "activations" in model.offloaded else []


def _kept(model: _Model) -> int:
    """Activations on the device after forward."""
    kept = gpt_activation_bytes(*model[1:6], model.vocabulary)
    if "activations" not in model.offloaded:
        return kept
    ids, mask = 8 * model.sequence * model.batch, model.sequence**2
    copied = 2 * (ids >= MIN_BYTES) * ids + model.layers * (mask >= MIN_BYTES) * mask
    return kept - (sum(_sent(model)) - copied)  # ids and masks are no activations: only copied


def _returned(model: _Model) -> int:
    """Bytes that the start of backward calls back: log-probabilities, and `prefetch` before."""
    before = _sent(model)
    if 8 * model.sequence * model.batch >= MIN_BYTES:
        before = before[:-1]  # the targets were saved last
    return sum(before[-1 - model.prefetch :])
