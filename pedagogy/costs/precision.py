"""What 16 bits save and what they do not: bytes by kind of our GPT, and speed by what limits it.

Three ways to train, with Adam
------------------------------
    fp32                          everything in 4 bytes
    autocast                      weights, gradients, states in fp32; matrix products in 16 bits
    16-bit with master weights    weights and gradients in 16 bits, fp32 copies in the optimizer

Model states are 16 bytes a parameter in all three: 4 + 4 + 8, or 2 + 2 + 12. And more for a
moment: `MasterWeights` casts the gradients to fp32 for its update, 18 bytes a parameter then.

Activations, in bytes an element (`costs.memory.gpt_activation_terms` names the tensors)
----------------------------------------------------------------------------------------
    tensor                             fp32    autocast    16-bit
    inputs of norms                      4         4          2      autocast: sums stay fp32
    statistics of norms                  4         4          2      on a GPU 4 in all three
    input of query, key, value           4     2 + 2 + 2      2      autocast casts it three times
    q, k, v, probabilities, products     4         2          2
    around GELU                          4         2          2
    last norm's output                   4         2          2
    log-probabilities                    4         4          4      the loss is in fp32
    weights that were cast               0         2          0      12 h^2 a layer, and V h

The last row is autocast's own: the 16-bit copies of the weights are what backward needs, so they
live until then. With few tokens they eat up what the activations save.

Speed
-----
An operation takes as long as the slower of two things: its FLOPs at the peak, its bytes at the
memory's speed. Bytes are halved in 16 bits: 2x where they limit. Products of large matrices run on
tensor cores, 8x (V100, T4) or 16x (A100) the fp32 peak: between 2x and that where FLOPs limit.

Not modelled: buffers, scratch within an operation, inputs and targets, a scalar of the loss scaler,
dropout, fused attention, kernels that are launched faster than they run, casts' own time.
Sources: torch's autocast op lists; NVIDIA's data sheets for V100 SXM2, T4 and A100 40 GB (dense).
"""

from __future__ import annotations

from typing import NamedTuple

from pedagogy.costs.memory import gpt_parameters

PRECISIONS = ("fp32", "autocast", "16-bit with master weights")
KINDS = ("parameters", "gradients", "optimizer_state", "activations")
_STATES = {  # bytes a parameter: weight, gradient, optimizer state with Adam
    "fp32": (4, 4, 8),
    "autocast": (4, 4, 8),
    "16-bit with master weights": (2, 2, 12),
}
_GRADIENT_AT_UPDATE = 4  # of the master weights too


def gpt_activation_terms(
    precision: str,
    layers: int,
    hidden: int,
    heads: int,
    sequence: int,
    batch: int,
    vocabulary: int = 256,
    statistics_bytes: int | None = None,
) -> dict[str, int]:
    """Bytes that are live between forward and backward of our tied GPT, term by term.

    In "fp32" they are those of `costs.memory`. `statistics_bytes` of a norm's mean and deviation:
    by default what a CPU keeps, the size of the norm's input; on a GPU it is 4.
    **Raises** ValueError for a precision that is none of `PRECISIONS`.
    """
    _check(precision)
    stream = 2 if precision == PRECISIONS[2] else 4  # residual sums, inputs of norms
    inside = 4 if precision == "fp32" else 2
    copies = 3 if precision == "autocast" else 1  # of the input of query, key and value
    statistics = statistics_bytes or stream
    tokens = sequence * batch
    hidden_states = tokens * hidden
    cast_weights = layers * 12 * hidden**2 + vocabulary * hidden
    logits = 4 * tokens * vocabulary + 2 * 4  # log-probabilities, sum of the weights, the loss
    return {
        "norms": layers * (2 * stream * hidden_states + 4 * statistics * tokens),
        "attention": layers * (copies + 4) * inside * hidden_states,
        "probabilities": layers * heads * sequence * tokens * inside,
        "feed_forward": layers * 9 * inside * hidden_states,
        "output": (stream + inside) * hidden_states + 2 * statistics * tokens + logits,
        "cast_weights": 2 * cast_weights if precision == "autocast" else 0,
    }


def gpt_moments(
    precision: str,
    layers: int,
    hidden: int,
    heads: int,
    sequence: int,
    batch: int,
    vocabulary: int = 256,
) -> dict[str, dict[str, int]]:
    """Bytes by kind at three moments of a step with Adam, from the second step on.

    "after forward": all activations are kept. "start of backward": besides them two fp32 tensors
    of s b V, the gradients of log-probabilities and logits. "update": all gradients; of
    activations only the loss. The peak is at one of the last two, where no operation makes more
    scratch than 2 s b V. Adam's step counters, 4 bytes a tensor, are counted.
    **Raises** ValueError for another precision.
    """
    sizes = (layers, hidden, heads, sequence, batch, vocabulary)
    kept = sum(gpt_activation_terms(precision, *sizes).values())
    count = gpt_parameters(layers, hidden, vocabulary, sequence)
    weight, _, state = _STATES[precision]
    held = {
        "parameters": weight * count,
        "gradients": 0,
        "optimizer_state": state * count + 4 * (16 * layers + 4),
    }
    starting = kept + 2 * 4 * sequence * batch * vocabulary
    update = {"gradients": _GRADIENT_AT_UPDATE * count, "activations": 4}
    return {
        "after forward": {**held, "activations": kept},
        "start of backward": {**held, "activations": starting},
        "update": {**held, **update},
    }


def gpt_bytes(
    precision: str,
    layers: int,
    hidden: int,
    heads: int,
    sequence: int,
    batch: int,
    vocabulary: int = 256,
) -> dict[str, int]:
    """Bytes by kind after a step with Adam, and of the activations after its forward.

    Gradients as backward leaves them, which is when they are largest but for the update.
    **Raises** ValueError for another precision.
    """
    moments = gpt_moments(precision, layers, hidden, heads, sequence, batch, vocabulary)
    count = gpt_parameters(layers, hidden, vocabulary, sequence)
    return {**moments["after forward"], "gradients": _STATES[precision][1] * count}


class Device(NamedTuple):
    """Peaks in FLOPs a second, dense; `tf32` is None where there is none; memory's bytes."""

    name: str
    tensor_16: float
    fp32: float
    tf32: float | None
    bytes_per_second: float


DEVICES = {
    one.name: one
    for one in (
        Device("V100", 125e12, 15.7e12, None, 900e9),
        Device("T4", 65e12, 8.1e12, None, 320e9),
        Device("A100", 312e12, 19.5e12, 156e12, 1555e9),
    )
}


def matmul_work(m: int, n: int, k: int) -> tuple[int, int]:
    """FLOPs, and bytes in fp32, of a product (m, k) x (k, n), each matrix moved once."""
    return 2 * m * n * k, 4 * (m * k + k * n + m * n)


def bound(flops: float, num_bytes: float, flops_per_second: float, bytes_per_second: float) -> str:
    """What takes longer, "flops" or "bytes"; "bytes" where both take as long."""
    return "flops" if flops / flops_per_second > num_bytes / bytes_per_second else "bytes"


def seconds(
    flops: float, num_bytes: float, flops_per_second: float, bytes_per_second: float
) -> float:
    """The slower of the two; they overlap."""
    return max(flops / flops_per_second, num_bytes / bytes_per_second)


def speedup(flops: float, num_bytes: float, device: Device) -> float:
    """fp32 seconds / 16-bit seconds, for FLOPs on tensor cores and `num_bytes` of fp32.

    2 where bytes limit both; the ratio of the peaks where FLOPs limit both; between them where
    fp32 is limited by FLOPs and 16 bits already by bytes.
    **Raises** ValueError for no work at all, or a negative one.
    """
    if min(flops, num_bytes) < 0 or flops + num_bytes == 0:
        raise ValueError(f"{flops} FLOPs and {num_bytes} bytes: must be 0 or more, and not both 0")
    speed = device.bytes_per_second
    wide = seconds(flops, num_bytes, device.fp32, speed)
    return wide / seconds(flops, num_bytes / 2, device.tensor_16, speed)


def _check(precision: str) -> None:
    if precision not in PRECISIONS:
        raise ValueError(f"unknown precision {precision!r}: choose one of {PRECISIONS}")
