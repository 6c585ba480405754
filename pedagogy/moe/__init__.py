"""Mixture of experts: many feed-forward layers, of which each token uses few.

Read in this order: `routing`, `shazeer`, `gshard`, `switch`, `dispatch`, `layer`, `hierarchical`.
"""

from pedagogy.moe.dispatch import combine, dispatch, run_experts
from pedagogy.moe.gshard import gshard_gate, gshard_loss
from pedagogy.moe.hierarchical import (
    gate_multiplications,
    hierarchical_all_to_all,
    hierarchical_gate,
)
from pedagogy.moe.layer import ExpertParallelMoE, MoELayer
from pedagogy.moe.routing import Routing, expert_capacity, keep_within, places_of
from pedagogy.moe.shazeer import (
    NoisyTopKGate,
    expected_load,
    importance_loss,
    load_loss,
    noisy_top_k_gate,
    squared_cv,
    top_k,
)
from pedagogy.moe.switch import pooled_switch_loss, switch_gate, switch_loss

__all__ = [
    "ExpertParallelMoE",
    "MoELayer",
    "NoisyTopKGate",
    "Routing",
    "combine",
    "dispatch",
    "expected_load",
    "expert_capacity",
    "gate_multiplications",
    "gshard_gate",
    "gshard_loss",
    "hierarchical_all_to_all",
    "hierarchical_gate",
    "importance_loss",
    "keep_within",
    "load_loss",
    "noisy_top_k_gate",
    "places_of",
    "pooled_switch_loss",
    "run_experts",
    "squared_cv",
    "switch_gate",
    "switch_loss",
    "top_k",
]
