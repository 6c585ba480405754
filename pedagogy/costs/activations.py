"""What a layer keeps for backward when it is cut over t ranks: the paper's formula, and our GPT's.

Why it exists
-------------
Tensor parallelism divides the weights by t, but only some activations: what lies between the two
linear layers of each half. Inputs of norms and halves, and masks, stay whole on every rank until
sequence parallelism cuts them too.

The paper's layer: 16 bit, dropout, GELU, 4 h wide, attention without FlashAttention
------------------------------------------------------------------------------------
Bytes a layer, in units of s b h, with c = 5 a s / h (80 in GPT-3, 64 in MT-NLG):

    one rank                          34 + c
    t ranks                           10 + 24/t + c/t
    and sequence parallelism          (34 + c)/t
    and selective recomputation       34/t            without sequence parallelism 10 + 24/t
    full recomputation                2               the layer's input alone

Our layer
---------
Every term of the paper has its counterpart. What differs:

* fp32 instead of 16 bit: 4 bytes an element (a mask keeps 1);
* LayerNorm keeps the mean and 1/deviation of each position: 4 s b elements the paper leaves out;
* without dropout there are no masks (2 of the 34), and of its 5 a s^2 b, which are probabilities
  before dropout, its mask, and probabilities after it, only the first 2 are left;
* a sequence-parallel layer may keep its gathered inputs (2 s b h elements whole on each rank) and
  save the second gathering in backward; the paper's keeps the shard.

In elements, without dropout:

    t ranks                        4 s b h + 12 s b h/t + a s^2 b/t + 4 s b
    sequence parallel, gathered    2 s b h + 14 s b h/t + a s^2 b/t + 4 s b/t
    sequence parallel, the shard             16 s b h/t + a s^2 b/t + 4 s b/t

Source: Korthikanti et al. 2022, sections 4 and 5, table 2. Units: bytes; GB is 10^9 bytes.
"""

from __future__ import annotations

from pedagogy.costs.multiples import check_divides

_RECOMPUTE = ("none", "selective", "full")

# bytes per element of s b h in a layer, by tensor: what tensor parallelism leaves whole, and cuts
_WHOLE = {
    "norm_inputs": 4,
    "attention_input": 2,
    "attention_dropout_mask": 1,
    "feed_forward_input": 2,
    "feed_forward_dropout_mask": 1,
}
_CUT = {
    "queries_and_keys": 4,
    "values": 2,
    "projection_input": 2,
    "before_gelu": 8,
    "after_gelu": 8,
}
_SCORES = {  # the same, by element of a s^2 b
    "softmax_output": 2,
    "softmax_dropout_mask": 1,
    "softmax_dropout_output": 2,
}


def activation_terms_per_layer(
    sequence: int,
    batch: int,
    hidden: int,
    heads: int,
    tensor_parallel: int = 1,
    sequence_parallel: bool = False,
    recompute: str = "none",
) -> dict[str, int]:
    """Bytes that one rank keeps of one layer, tensor by tensor; 16 bit, with dropout.

    Recompute is "none", "selective" (the scores, and what is made of them, are computed again) or
    "full" (all but the layer's input, whole on each rank: the paper does not cut it, though a
    sequence-parallel rank could keep 1/t).
    **Raises** ValueError for another name, and where t does not divide heads and hidden, or with
    sequence parallelism the sequence.
    **Source** Korthikanti et al. 2022, sections 4.1 to 5 and table 2.
    """
    if recompute not in _RECOMPUTE:
        choices = ", ".join(map(repr, _RECOMPUTE))
        raise ValueError(f"unknown recompute {recompute!r}: choose one of {choices}")
    t = tensor_parallel
    check_divides(t, heads=heads, hidden=hidden)
    check_divides(1, sequence=sequence, batch=batch)
    if sequence_parallel:
        check_divides(t, sequence=sequence)
    hidden_states, scores = sequence * batch * hidden, heads * sequence**2 * batch
    if recompute == "full":
        return {"layer_input": 2 * hidden_states}
    ranks_of_whole = t if sequence_parallel else 1
    terms = {name: size * hidden_states // ranks_of_whole for name, size in _WHOLE.items()}
    terms |= {name: size * hidden_states // t for name, size in _CUT.items()}
    if recompute == "none":
        terms |= {name: size * scores // t for name, size in _SCORES.items()}
    return terms


def activation_bytes_per_layer(
    sequence: int,
    batch: int,
    hidden: int,
    heads: int,
    tensor_parallel: int = 1,
    sequence_parallel: bool = False,
    recompute: str = "none",
) -> int:
    """Bytes that one rank keeps of one layer; the sum of `activation_terms_per_layer`.

    s b h (34 + 5 a s / h) on one rank, in 16 bit and with dropout. The formula assumes GELU in a
    feed-forward of 4 h, and attention that keeps its probabilities (no FlashAttention).
    **Raises** as that. **Source** Korthikanti et al. 2022, equations 1 to 6 and table 2.
    """
    terms = activation_terms_per_layer(
        sequence, batch, hidden, heads, tensor_parallel, sequence_parallel, recompute
    )
    return sum(terms.values())


def first_stage_factor(num_stages: int, num_chunks: int = 1) -> float:
    """How many layers' activations the first stage of 1F1B holds, as a share of all L layers.

    p micro-batches of L/p layers: 1. Interleaved with m chunks a rank: 1 + (p - 1)/(p m).
    **Source** Korthikanti et al. 2022, section 4.2.3.
    """
    if num_stages < 1 or num_chunks < 1:
        raise ValueError(f"{num_stages} stages of {num_chunks} chunks: must be 1 or more")
    return 1.0 if num_chunks == 1 else 1 + (num_stages - 1) / (num_stages * num_chunks)


def first_stage_extra_bytes(
    sequence: int,
    batch: int,
    hidden: int,
    vocabulary: int,
    num_stages: int = 1,
    tensor_parallel: int = 1,
) -> float:
    """Bytes that a rank of the first stage keeps beside its layers, with sequence parallelism.

    The embedding's dropout mask of p micro-batches, s b h p/t; and if it is the last stage too: the
    inputs of the last norm and of the output, 2 s b h each, and fp32 logits, 4 s b V, all over t.
    **Source** Korthikanti et al. 2022, section 4.3.
    """
    check_divides(1, num_stages=num_stages, tensor_parallel=tensor_parallel)
    tokens = sequence * batch / tensor_parallel
    extra = tokens * hidden * num_stages
    return extra + 4 * tokens * (hidden + vocabulary) if num_stages == 1 else extra


def selective_flops_fraction(sequence: int, hidden: int) -> float:
    """FLOPs that selective recomputation adds, as a share of a layer's step; derived.

    Scores and what the heads read are computed once more, 4 b s^2 h, beside the 72 b s h^2 + 12 b
    s^2 h of forward and backward: (s/18h)/(1 + s/6h).
    """
    return 4 * sequence / (72 * hidden + 12 * sequence)


def selective_flops_fraction_as_printed(sequence: int, hidden: int) -> float:
    """(1 + s/3h)/(1 + s/6h) - 1: three times the derived one.

    The printed 2.7 % (GPT-3) and 1.6 % (MT-NLG) are this: its hardware FLOPs add s/6h, all that
    attention's products cost in forward and backward, where one more forward is s/18h.
    **Source** Korthikanti et al. 2022, section 5 and appendix A.
    """
    return (1 + sequence / (3 * hidden)) / (1 + sequence / (6 * hidden)) - 1


def gpt_layer_activation_terms(
    sequence: int,
    batch: int,
    hidden: int,
    heads: int,
    tensor_parallel: int = 1,
    kept: str = "whole",
    dropout: bool = False,
    bytes_per_element: int = 4,
) -> dict[str, int]:
    """Bytes that one rank keeps of one layer of our GPT, by the tables above, term by term.

    `kept` says how the halves' inputs are kept: "whole" (`ParallelBlock`), "gathered"
    (`SequenceParallelBlock`) or "shard" (`RegatheringBlock`). The layer's output is the next one's
    to count. With one rank all three are the ordinary layer.
    **Raises** ValueError for another name, and where t does not divide heads and hidden, or what
    is cut along the sequence.
    """
    choices = ("whole", "gathered", "shard")
    if kept not in choices:
        raise ValueError(f"kept is {kept!r}: choose one of {', '.join(map(repr, choices))}")
    t = tensor_parallel
    check_divides(t, heads=heads, hidden=hidden)
    if kept != "whole":
        check_divides(t, sequence=sequence)
    ranks_of_whole = 1 if kept == "whole" else t
    ranks_of_inputs = t if kept == "shard" else 1
    tokens, scores = sequence * batch, heads * sequence**2 * batch // t
    hidden_states = tokens * hidden
    elements = {
        "norm_inputs": 2 * hidden_states // ranks_of_whole,
        "norm_statistics": 4 * tokens // ranks_of_whole,
        "inputs_of_halves": 2 * hidden_states // ranks_of_inputs,
        "queries_keys_values": 3 * hidden_states // t,
        "probabilities": scores,
        "projection_input": hidden_states // t,
        "around_gelu": 8 * hidden_states // t,
    }
    terms = {name: count * bytes_per_element for name, count in elements.items()}
    if dropout:
        terms["probabilities_dropped"] = scores * bytes_per_element
        terms["probabilities_mask"] = scores
        terms["masks"] = 2 * hidden_states // ranks_of_whole
    return terms


def gpt_parameters_per_rank(
    layers: int, hidden: int, vocabulary: int, sequence: int, tensor_parallel: int = 1
) -> dict[str, int]:
    """Parameters that one rank of our tied GPT holds: those that are cut, and those that are not.

    Cut: 12 h^2 + 7 h a layer and V h (V rounded up to a multiple of t), over t. Whole on every
    rank: norms, 4 h a layer and 2 h at the end; biases behind a sum, 2 h a layer; positions, s h.
    """
    check_divides(tensor_parallel, hidden=hidden)
    t, rows = tensor_parallel, -(-vocabulary // tensor_parallel)
    return {
        "layers_cut": layers * (12 * hidden**2 + 7 * hidden) // t,
        "vocabulary_cut": rows * hidden,
        "norms": (4 * layers + 2) * hidden,
        "biases": 2 * layers * hidden,
        "positions": sequence * hidden,
    }
