"""Mixture of experts: many feed-forward layers, of which each token uses few.

Read in this order: `routing`, `shazeer`, `gshard`, `switch`, `router`, `dispatch`, `layer`,
`expert_parallel`, `hierarchical`, `training`, `specialisation`.
"""

from pedagogy.moe.dispatch import combine, dispatch, run_experts
from pedagogy.moe.expert_parallel import ExpertParallelMoE, SummedExperts
from pedagogy.moe.gshard import gshard_gate, gshard_loss, in_groups
from pedagogy.moe.hierarchical import (
    hierarchical_all_to_all,
    hierarchical_gate,
    hierarchical_load,
    two_level_exchange,
)
from pedagogy.moe.layer import MoELayer, balance_loss, mixture, moe_layers
from pedagogy.moe.router import NoisyTopKGate, Router
from pedagogy.moe.routing import Routing, expert_capacity, keep_within, places_of
from pedagogy.moe.shazeer import (
    expected_load,
    importance_loss,
    load_loss,
    noisy_top_k_gate,
    squared_cv,
    top_k,
)
from pedagogy.moe.specialisation import (
    joint_counts,
    mutual_information,
    shuffled_information,
    token_classes,
)
from pedagogy.moe.switch import (
    chosen_shares,
    loss_with_shares,
    pooled_switch_loss,
    switch_gate,
    switch_loss,
)
from pedagogy.moe.training import (
    dense_gpt,
    equal_compute,
    load_shares,
    mixture_gpt,
    train,
)

__all__ = [
    "ExpertParallelMoE",
    "MoELayer",
    "NoisyTopKGate",
    "Router",
    "Routing",
    "SummedExperts",
    "balance_loss",
    "chosen_shares",
    "combine",
    "dense_gpt",
    "dispatch",
    "equal_compute",
    "expected_load",
    "expert_capacity",
    "gshard_gate",
    "gshard_loss",
    "hierarchical_all_to_all",
    "hierarchical_gate",
    "hierarchical_load",
    "importance_loss",
    "in_groups",
    "joint_counts",
    "keep_within",
    "load_loss",
    "load_shares",
    "loss_with_shares",
    "mixture",
    "mixture_gpt",
    "moe_layers",
    "mutual_information",
    "noisy_top_k_gate",
    "places_of",
    "pooled_switch_loss",
    "run_experts",
    "shuffled_information",
    "squared_cv",
    "switch_gate",
    "switch_loss",
    "token_classes",
    "top_k",
    "train",
    "two_level_exchange",
]
