"""What a pipeline's ranks hold and send: weight versions, activations, boundaries.

Why it exists
-------------
Pipelining divides the weights by p. What else a stage must hold depends on the schedule: copies
of the weights, if it updates while micro-batches are under way, and activations, for each of them
that is. With recomputation only the inputs of the stage are kept for every micro-batch, and the
full activations of one:

    GPipe            |W|/p  + |A|/p + m |A_in|     all m micro-batches wait for the flush
    PipeDream-Flush  |W|/p  + |A|/p + p |A_in|     1F1B: never more than p
    PipeDream-2BW    2|W|/p + |A|/p + p |A_in|     no flush, two versions of the weights
    PipeDream        stage s keeps p - s versions of its own weights: one for each in flight

|W| are the bytes of all weights, |A| of all activations of one micro-batch, |A_in| of the input
of one stage. Stages are even: in a real model they are not, so report memory for each rank.

What it sends
-------------
Each boundary between stages is crossed twice by every micro-batch: its activation forward, and
the gradient of the same size back. Cutting ranks into v chunks makes p v - 1 boundaries of p - 1.

Sources: Huang et al. 2019 (GPipe) and Table 1; Narayanan et al. 2021 (PipeDream-2BW),
its planner; Narayanan et al. 2021 (PTD-P), sections 2.2 and 3.2; Qi et al. 2023 (Zero Bubble).
Units: bytes.
"""

from __future__ import annotations

GPIPE_BYTES_PER_PARAMETER = 12  # fp32 with RMSProp, as GPipe's Table 1 counts it

_TECHNIQUES = ("gpipe", "pipedream_flush", "pipedream_2bw")


def gpipe_transformer_parameters(layers: int, hidden: int = 2048, vocabulary: int = 32000) -> int:
    """Parameters of GPipe's Transformer-L: L(12 d^2 + 13 d) + 2 V d.

    Embedding and output are two tables; positions and the last norm are not counted.
    **Source** derived: it gives each L of Huang et al. 2019, Table 1, to a unit of the last digit.
    """
    return layers * (12 * hidden**2 + 13 * hidden) + 2 * vocabulary * hidden


def gpipe_peak_activation(batch: int, layers: int, num_stages: int, num_microbatches: int) -> float:
    """Peak of a stage that recomputes: N + (L/K)(N/M), in activations of one layer and sample.

    N is the input of the stage for the whole batch; the second term is one micro-batch through
    the stage's own layers. Without recomputation and stages it would be N L.
    **Raises** ValueError for less than 1. **Source** Huang et al. 2019.
    """
    _at_least_one(batch=batch, layers=layers, stages=num_stages, microbatches=num_microbatches)
    return batch + layers / num_stages * batch / num_microbatches


def recomputing_stage_bytes(
    technique: str,
    weight_bytes: float,
    activation_bytes: float,
    input_bytes: float,
    num_stages: int,
    num_microbatches: int,
) -> float:
    """Bytes of one stage with recomputation, by the table above.

    Technique is "gpipe", "pipedream_flush" or "pipedream_2bw"; `activation_bytes` are those of one
    micro-batch through the whole model, `input_bytes` of one micro-batch's input of one stage.
    Gradients and optimizer state are left out. 2BW needs m >= p for its two versions to suffice.
    **Raises** ValueError for another technique, or m < p in 2BW.
    **Source** Narayanan et al. 2021 (PipeDream-2BW); min(m, p) instead of p is ours, for m < p.
    """
    _at_least_one(stages=num_stages, microbatches=num_microbatches)
    if technique not in _TECHNIQUES:
        choices = ", ".join(map(repr, _TECHNIQUES))
        raise ValueError(f"unknown technique {technique!r}: choose one of {choices}")
    if technique == "pipedream_2bw" and num_microbatches < num_stages:
        raise ValueError(
            f"{num_microbatches} micro-batches on {num_stages} stages: two weight versions suffice "
            f"from {num_stages} micro-batches on"
        )
    versions = 2 if technique == "pipedream_2bw" else 1
    kept = num_microbatches if technique == "gpipe" else min(num_stages, num_microbatches)
    return (versions * weight_bytes + activation_bytes) / num_stages + kept * input_bytes


def pipedream_weight_versions(stage: int, num_stages: int) -> int:
    """Versions of its weights that a PipeDream stage keeps with weight stashing: p - stage.

    One for each micro-batch in flight, the newest included; in steady state.
    **Raises** ValueError for a stage that there is not.
    **Source** Narayanan et al. 2019 (PipeDream).
    """
    _check_rank(stage, num_stages)
    return num_stages - stage


def zero_bubble_h1_activation(
    rank: int, num_stages: int, before_b: float, before_w: float
) -> float:
    """Peak activation of a rank in H1: (p - rank) M_B + rank M_W.

    `before_b` (M_B) is what a stage keeps of one micro-batch from F to B, `before_w` (M_W) from B
    to W; any unit. The paper counts workers from 1.
    **Raises** ValueError for a rank that there is not. **Source** Qi et al. 2023, Table 2.
    """
    _check_rank(rank, num_stages)
    return (num_stages - rank) * before_b + rank * before_w


def zero_bubble_h2_activation(
    rank: int, num_stages: int, before_b: float, before_w: float
) -> float:
    """Peak activation of a rank in H2: (2p - 2 rank - 1) M_B + 2 rank M_W.

    **Raises** ValueError for a rank that there is not. **Source** Qi et al. 2023, Table 2.
    """
    _check_rank(rank, num_stages)
    return (2 * num_stages - 2 * rank - 1) * before_b + 2 * rank * before_w


def boundary_bytes(microbatch: int, sequence: int, hidden: int, bytes_per_element: int = 2) -> int:
    """Bytes that a micro-batch of a transformer sends over one boundary, one way: b s h elements.

    **Source** Narayanan et al. 2021 (PTD-P), section 3.2.
    """
    return microbatch * sequence * hidden * bytes_per_element


def point_to_point_bytes(
    num_stages: int, num_microbatches: int, bytes_at_boundary: int, num_chunks: int = 1
) -> int:
    """Bytes that all ranks send in one iteration: 2 m (p v - 1) boundaries.

    Activations forward and gradients back. v chunks multiply it by (p v - 1)/(p - 1), a little
    more than v. One rank sends nothing, however many chunks it holds.
    **Raises** ValueError for less than 1. **Source** Narayanan et al. 2021 (PTD-P), section 2.2.
    """
    _at_least_one(stages=num_stages, microbatches=num_microbatches, chunks=num_chunks)
    boundaries = num_stages * num_chunks - 1 if num_stages > 1 else 0
    return 2 * num_microbatches * boundaries * bytes_at_boundary


def _at_least_one(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{count} {name}: must be 1 or more")


def _check_rank(rank: int, num_ranks: int) -> None:
    _at_least_one(ranks=num_ranks)
    if not 0 <= rank < num_ranks:
        raise ValueError(f"rank {rank} of {num_ranks}: choose one from 0 to {num_ranks - 1}")
