"""Activation recomputation: memory bought with a second forward.

Read in this order: `checkpoint`, `segments`, `policies`; then tensor by tensor: `made`, `writes`,
`again`, `tape`, `selective`, `watch`, `profile`, `predict`, `decide`.
"""

from pedagogy.recompute.again import ACTIONS
from pedagogy.recompute.checkpoint import CheckpointFunction, checkpoint
from pedagogy.recompute.decide import (
    Decision,
    by_operation,
    by_policy,
    recompute_seconds,
    swap_or_recompute,
)
from pedagogy.recompute.made import Made, Op
from pedagogy.recompute.policies import POLICIES, Plan, Segment, plan
from pedagogy.recompute.predict import Prediction, predict
from pedagogy.recompute.profile import Profile, profile
from pedagogy.recompute.segments import (
    checkpoint_binomial,
    checkpoint_sequential,
    longest_chain,
    optimal_forwards,
)
from pedagogy.recompute.selective import attention_scores
from pedagogy.recompute.tape import Tape, by_rule

__all__ = [
    "ACTIONS",
    "POLICIES",
    "CheckpointFunction",
    "Decision",
    "Made",
    "Op",
    "Plan",
    "Prediction",
    "Profile",
    "Segment",
    "Tape",
    "attention_scores",
    "by_operation",
    "by_policy",
    "by_rule",
    "checkpoint",
    "checkpoint_binomial",
    "checkpoint_sequential",
    "longest_chain",
    "optimal_forwards",
    "plan",
    "predict",
    "profile",
    "recompute_seconds",
    "swap_or_recompute",
]
