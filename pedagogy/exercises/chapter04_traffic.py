"""Chapter 04: what is asked of memory, and of what experts elsewhere cost."""

from __future__ import annotations

import torch

from pedagogy.costs.moe import expert_parameters
from pedagogy.costs.moe_messages import expert_parallel_bytes, two_level_messages
from pedagogy.costs.published import table
from pedagogy.exercises.prediction import Prediction
from pedagogy.exercises.registry import register


def _switch_c_expert(times: float = 1.0, matrices: int = 2) -> float:
    published = table("switch_table9_models")
    (row,) = (row for row in published.rows if row["model"] == "Switch-C")
    return times * expert_parameters(int(row["d_model"]), int(row["d_ff"]), matrices) / 1e6


SWITCH_C = Prediction(
    name="switch_c_layer",
    chapter="04",
    question="A layer of Switch-C has 2,048 experts of 2080 -> 6144 -> 2080, without biases, and "
    "routes top 1. Millions of expert parameters that a token meets in it?",
    key=_switch_c_expert,
    unit="million",
    mistakes=[
        (lambda: _switch_c_expert(2048), "those are all experts of the layer; a token meets one."),
        (lambda: _switch_c_expert(2), "that is two experts, top 2; Switch sends a token to one."),
        (lambda: _switch_c_expert(0.5), "an expert has two matrices, in and out."),
        (
            lambda: _switch_c_expert(matrices=3),
            "Switch-C's experts are not gated: two matrices, not three.",
        ),
        (
            lambda: _switch_c_expert(15),
            "that is in the encoder's 15 layers together; one of them was asked for.",
        ),
        (
            lambda: _switch_c_expert(30),
            "that is in all 30 layers, encoder and decoder; one of them was asked for.",
        ),
        (lambda: _switch_c_expert(1e6), "count in millions."),
    ],
    because="One of 2,048: 25.6 of 52,344 million. The others cost memory, not FLOPs.",
)


def _bytes_per_token(ranks: int = 8, k: int = 2) -> float:
    tokens = ranks  # each of whose k choices is as often on any rank: 1/ranks at home
    return expert_parallel_bytes(k * (tokens - 1), 1024) / tokens


BYTES = Prediction(
    name="moe_bytes_per_token",
    chapter="04",
    question="Top 2, hidden 1024, fp32, experts evenly spread over 8 ranks and evenly chosen. "
    "Bytes that the layer sends per token, forward and backward, on average?",
    key=_bytes_per_token,
    unit="bytes",
    mistakes=[
        (32_768, "one choice in eight stays on its own rank, and sends nothing."),
        (
            14_336,
            "that is half: backward sends as much as forward, top 2 makes two choices, and a "
            "number in fp32 has 4 bytes.",
        ),
        (
            7_168,
            "that is a quarter: each of two choices travels there and back, forward and backward.",
        ),
        (
            16_384,
            "that is half of 32,768: forward and backward both send, for both choices; and one "
            "choice in eight stays at home.",
        ),
        (
            8_192,
            "that is one way for both choices: outputs come back, backward does both once more, "
            "and one choice in eight stays at home.",
        ),
        (
            4_096,
            "that is one vector: it goes for two choices, there and back, forward and backward, "
            "7 times in 8.",
        ),
        (
            65_536,
            "that counts 8 journeys for each choice: there, back, and both once more in backward "
            "are 4. And one choice in eight stays at home.",
        ),
        (
            3_584,
            "that is one journey of one choice, 7 times in 8: two choices travel there and back, "
            "forward and backward.",
        ),
        (lambda: 8 * _bytes_per_token(), "that is for 8 tokens, one on each rank."),
        (
            2 * 32_768 * 0.875,
            "twice too much: there and back in forward, there and back in backward are 4 journeys "
            "for each choice, not 8.",
        ),
    ],
    because="4 journeys * 2 choices * 7/8 * 4,096 bytes: seven times a vector.",
)


def _gradient_in_one_process() -> float:
    """The mean over both ranks' tokens, of losses whose means have the gradients 1 and 3."""
    weight = torch.ones((), requires_grad=True)
    torch.stack([1.0 * weight, 3.0 * weight]).mean().backward()
    return weight.grad.item()


EXPERT_GRADIENT = Prediction(
    name="expert_gradient_c47",
    chapter="04",
    question="2 ranks, each with the mean loss of its own, equally many tokens. An expert on rank "
    "0 gets a gradient of 1.0 from rank 0's tokens, of 3.0 from rank 1's. What would one process "
    "with the whole batch have?",
    key=_gradient_in_one_process,
    mistakes=[
        (
            4,
            "that is what arrives at the expert, a sum over the ranks. The loss of the whole "
            "batch is a mean over them: divide by 2.",
        ),
        (
            1,
            "divided twice, or rank 1's tokens left out: the sum, 4, is divided by the 2 ranks "
            "once.",
        ),
        (3, "that is the part of rank 1's tokens alone; rank 0's count as much."),
        (1.5, "that is half of rank 1's part; rank 0's tokens went to the expert as well."),
        (0.5, "that is half of rank 0's part; rank 1's tokens went to the expert as well."),
    ],
    because="(1 + 3) / 2. The expert has the sum already: averaging over ranks is dividing by 2.",
)

MESSAGES = Prediction(
    name="messages_between_nodes",
    chapter="04",
    question="16 ranks in 4 nodes. In a flat all_to_all each rank sends 12 messages to other "
    "nodes. In one of two levels?",
    key=lambda: two_level_messages(16, 4).between,
    tolerance=0.0,
    unit="messages",
    mistakes=[
        (12, "that is flat: in two levels a rank talks to one rank in each other node."),
        (4, "its own node is not another one."),
        (6, "three of these stay inside the node."),
        (1, "there are three other nodes, and one message for each."),
        (15, "that is flat, and inside the node as well."),
        (0, "what is for another node has to get there: one message for each node."),
        (48, "those are all 16 ranks' together."),
    ],
    because="One to the same place in each other node, with four times as much in it.",
)

register(SWITCH_C, BYTES, EXPERT_GRADIENT, MESSAGES)
