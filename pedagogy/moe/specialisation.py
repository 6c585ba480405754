"""Do experts specialise? A number for it, and the number that chance would give.

How it is measured
------------------
Each token has a class (letter, digit, space, punctuation) and an expert. Their mutual information,

    I = sum over class c and expert e of p(c, e) log2( p(c, e) / (p(c) p(e)) )      in bits

says how much the expert tells of the class: nothing if they are independent, the entropy of the
classes if each class has experts of its own.

Chance
------
From a finite sample I is never quite 0, even where nothing is related: with few tokens some expert
gets more digits than its share. So the same number is taken with the experts shuffled among the
tokens, which keeps every expert's load and cuts every relation. What exceeds that is real.

Source: Shannon 1948 for the mutual information; the shuffle is a permutation test (Fisher 1935).
"""

from __future__ import annotations

import torch
from torch import Tensor

CLASSES = ("letter", "digit", "space", "punctuation")


def token_classes(ids: Tensor) -> Tensor:
    """The class of each byte, as an index into `CLASSES`; the last holds all others.

    **Shapes** any, int64 in 0 .. 255 -> the same.
    """
    table = torch.tensor([_class_of(byte) for byte in range(256)], device=ids.device)
    return table[ids]


def joint_counts(classes: Tensor, experts: Tensor, num_experts: int) -> Tensor:
    """How many tokens of each class went to each expert: (classes, num_experts).

    **Raises** ValueError for unequal numbers of tokens.
    """
    if classes.numel() != experts.numel():
        raise ValueError(f"{classes.numel()} classes for {experts.numel()} choices of an expert")
    pairs = classes.flatten() * num_experts + experts.flatten()
    return torch.bincount(pairs, minlength=len(CLASSES) * num_experts).view(-1, num_experts)


def mutual_information(counts: Tensor) -> float:
    """Bits that one index of a table of counts tells of the other: 0 if independent.

    **Shapes** (classes, experts). **Raises** ValueError for a table without counts.
    """
    if counts.sum() == 0:
        raise ValueError("no tokens were counted")
    joint = counts.double() / counts.sum()
    independent = joint.sum(1, keepdim=True) * joint.sum(0, keepdim=True)
    terms = joint * (joint / independent).log2()
    return terms[joint > 0].sum().item()


def shuffled_information(
    classes: Tensor, experts: Tensor, num_experts: int, shuffles: int = 100, seed: int = 0
) -> list[float]:
    """The mutual information after the experts were shuffled among the tokens, `shuffles` times."""
    generator = torch.Generator().manual_seed(seed)
    flat = experts.flatten()
    orders = (torch.randperm(len(flat), generator=generator) for _ in range(shuffles))
    return [mutual_information(joint_counts(classes, flat[o], num_experts)) for o in orders]


def _class_of(byte: int) -> int:
    character = chr(byte) if byte < 128 else "?"
    tests = (character.isalpha(), character.isdigit(), character.isspace())
    return tests.index(True) if True in tests else len(tests)
