"""How many bytes training needs: model states, and what backward keeps of our GPT.

Why it exists
-------------
"Does it fit?" is the first question about a large model, and it has an answer on paper. Two parts
grow with different things: the *model states* (parameters, gradients, optimizer state) with the
number of parameters and with nothing else; the *activations* with batch and sequence.

Model states
------------
Mixed precision with Adam: 2 bytes of weight and 2 of gradient in 16 bit, and in fp32 a master
copy of the weight, 4, and two moments, 4 + 4: together 16 bytes for each parameter. All in fp32 it
is 4 + 4 + 4 + 4 = 16 as well: mixed precision saves time and activations, not model states. The
popular "8 bytes per parameter for Adam" counts the two moments only.

Activations
-----------
Backward needs the inputs of most operations, so forward keeps them. `gpt_activation_terms` names
every tensor that autograd keeps of `pedagogy.workloads.GPT` without dropout; a test compares the
sum with the memory meter, byte for byte. It has the shape of the formula of Korthikanti et al.
2022, (34 s b h + 5 a s^2 b) bytes a layer in 16 bit: 32 of its 34 are our 16 s b h elements at 2
bytes, the other 2 are dropout masks; of its 5 a s^2 b, 2 are our probabilities and 3 are dropout's.
Fused attention (FlashAttention, scaled_dot_product_attention) stores no probabilities: no a s^2 b.

Units: bytes. GB is 10^9 bytes.
"""

from __future__ import annotations

from pedagogy.costs.activations import (
    activation_bytes_per_layer,
    activation_terms_per_layer,
    gpt_layer_activation_terms,
    gpt_parameters_per_rank,
)
from pedagogy.costs.zero import zero_bytes

__all__ = [
    "activation_bytes_per_layer",
    "activation_terms_per_layer",
    "gpt_activation_bytes",
    "gpt_activation_terms",
    "gpt_buffer_bytes",
    "gpt_layer_activation_terms",
    "gpt_parameters",
    "gpt_parameters_per_rank",
    "gpt_peak_bytes",
    "model_state_bytes",
    "model_states",
    "transformer_parameters",
    "zero_bytes",
]

# bytes per parameter: (parameters, gradients, fp32 master copy, one value of optimizer state)
_PRECISIONS = {"mixed": (2, 2, 4, 4), "fp32": (4, 4, 0, 4), "half": (2, 2, 0, 2)}
_VALUES_OF_STATE = {"adam": 2, "momentum": 1, "sgd": 0}


def model_states(
    num_parameters: int, precision: str = "mixed", optimizer: str = "adam"
) -> dict[str, int]:
    """Bytes of the model states by kind: parameters, gradients, optimizer_state.

    Precision is "mixed" (16-bit weights and gradients, fp32 master copy, which counts as optimizer
    state), "fp32", or "half" (all 16 bit, no master copy). Optimizer is "adam", "momentum" or
    "sgd". Adam's step counters, 4 bytes for each tensor, are left out.

    **Raises** ValueError for any other name, or a negative number.
    **Source** Rajbhandari et al. 2020 (ZeRO), section 3.1.
    """
    if num_parameters < 0:
        raise ValueError(f"{num_parameters} parameters: must be 0 or more")
    weight, gradient, master, value = _choose("precision", precision, _PRECISIONS)
    values = _choose("optimizer", optimizer, _VALUES_OF_STATE)
    return {
        "parameters": weight * num_parameters,
        "gradients": gradient * num_parameters,
        "optimizer_state": (master + value * values) * num_parameters,
    }


def model_state_bytes(
    num_parameters: int, precision: str = "mixed", optimizer: str = "adam"
) -> int:
    """Bytes of parameters, gradients and optimizer state together; 16 a parameter by default.

    **Raises** ValueError as `model_states` does.
    """
    return sum(model_states(num_parameters, precision, optimizer).values())


def transformer_parameters(layers: int, hidden: int, vocabulary: int, sequence: int) -> int:
    """Parameters of a GPT by the formula of the Megatron papers.

    P = 12 L h^2 (1 + 13/(12 h) + (V + s)/(12 L h)) = 12 L h^2 + 13 L h + (V + s) h: output tied to
    the embedding, last LayerNorm left out.
    **Source** Narayanan et al. 2021 (PTD-P), equation 2.
    """
    return 12 * layers * hidden**2 + 13 * layers * hidden + (vocabulary + sequence) * hidden


def gpt_parameters(
    layers: int, hidden: int, vocabulary: int, sequence: int, tied: bool = True
) -> int:
    """Parameters of `pedagogy.workloads.GPT`, exactly.

    A layer: 4 (h^2 + h) in attention, 4 h^2 + 4 h and 4 h^2 + h in feed-forward, 4 h in two
    LayerNorms = 12 h^2 + 13 h. Besides: V h token, s h position, 2 h last LayerNorm, and V h for
    an output of its own.
    """
    tied_count = transformer_parameters(layers, hidden, vocabulary, sequence) + 2 * hidden
    return tied_count if tied else tied_count + vocabulary * hidden


def gpt_activation_terms(
    layers: int,
    hidden: int,
    heads: int,
    sequence: int,
    batch: int,
    vocabulary: int = 256,
    bytes_per_element: int = 4,
) -> dict[str, int]:
    """Bytes that are live between forward and backward of our GPT, term by term; dropout 0.

    With s, b, h, a, L, V as usual, in elements. For each of L layers:

    * norms: two inputs, 2 s b h, and the mean and 1/deviation of each position, 4 s b;
    * attention: the normalised input, kept once for query, key and value, s b h; q, k and v,
      3 s b h; what heads read, the input of the projection, s b h;
    * probabilities: the output of the softmax, a s^2 b. The scores are not kept: softmax needs
      its output only, and the mask needs only itself (a buffer);
    * feed_forward: the normalised input, s b h; before GELU, 4 s b h; after it, 4 s b h.

    Residual sums and embeddings keep nothing of size. Once, at the output: the last norm's input
    and output, 2 s b h, its statistics, 2 s b, log-probabilities, s b V, and two scalars (the sum
    of the loss's weights, and the loss). Inputs and targets are the caller's: int64, 16 s b bytes.

    `bytes_per_element=2` is an estimate for 16 bit, where statistics stay fp32.
    """
    tokens = sequence * batch
    hidden_states = tokens * hidden
    elements = {
        "norms": layers * (2 * hidden_states + 4 * tokens),
        "attention": layers * 5 * hidden_states,
        "probabilities": layers * heads * sequence * tokens,
        "feed_forward": layers * 9 * hidden_states,
        "output": 2 * hidden_states + 2 * tokens + tokens * vocabulary + 2,
    }
    return {name: count * bytes_per_element for name, count in elements.items()}


def gpt_activation_bytes(
    layers: int,
    hidden: int,
    heads: int,
    sequence: int,
    batch: int,
    vocabulary: int = 256,
    bytes_per_element: int = 4,
) -> int:
    """Bytes live between forward and backward of our GPT; the sum of `gpt_activation_terms`.

    In elements: L (16 s b h + 4 s b + a s^2 b) + 2 s b h + 2 s b + s b V + 2.
    """
    terms = gpt_activation_terms(
        layers, hidden, heads, sequence, batch, vocabulary, bytes_per_element
    )
    return sum(terms.values())


def gpt_peak_bytes(
    layers: int,
    hidden: int,
    heads: int,
    sequence: int,
    batch: int,
    vocabulary: int = 256,
    precision: str = "fp32",
    optimizer: str = "adam",
) -> dict[str, int]:
    """Bytes by kind at the peak of a step of our GPT, from the second step on.

    A step has two high moments, and the higher one is the peak:

    * the start of backward: all activations and two tensors of s b V (the gradients of the
      log-probabilities and of the logits), and no gradient of a parameter yet;
    * the update: all gradients, and no activations.

    Left out: buffers, step counters, and the scratch space of one operation or of one tensor's
    update. The first moment is exact where no operation makes more scratch than those 2 s b V.
    """
    held = model_states(gpt_parameters(layers, hidden, vocabulary, sequence), precision, optimizer)
    size = 4 if precision == "fp32" else 2
    kept = gpt_activation_bytes(layers, hidden, heads, sequence, batch, vocabulary, size)
    kept += 2 * size * sequence * batch * vocabulary
    if kept > held["gradients"]:
        return {**held, "gradients": 0, "activations": kept}
    return {**held, "activations": 0}


def gpt_buffer_bytes(layers: int, sequence: int) -> int:
    """Bytes of our GPT's buffers: one causal mask of s^2 booleans in each layer."""
    return layers * sequence**2


def _choose(what: str, name: str, choices: dict) -> object:
    """The entry called `name`, or an error that lists what there is."""
    if name not in choices:
        raise ValueError(f"unknown {what} {name!r}: choose one of {', '.join(map(repr, choices))}")
    return choices[name]
