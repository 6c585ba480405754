"""Mixtures of experts as they are got wrong, each by one line.

A mutant is a change of source text: (module of `pedagogy.moe`, name, what stands there, what stands
there instead). `wrong` gives the name as the changed module defines it. `SPREAD`, `SUMMED`,
`POOLED` and `EXCHANGED` are run on several ranks and compared with one process; `GATES` are given
to the tests that were typed from a paper or worked by hand, of which the one named must fail.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tests.tensor_parallel.mutants import rewritten

BY_PLACE = "(experts * (int(places.max()) + 1 if len(places) else 1) + places).argsort()"
IN_ORDER = "homeward = [torch.cat([back[e][r] for e in range(each)])"

SPREAD = {
    "experts' gradients not divided": (
        "expert_parallel", "ExpertParallelMoE", "gradient / group.size", "gradient"),
    "divided by the experts too": (
        "expert_parallel", "ExpertParallelMoE",
        "gradient / group.size", "gradient / group.size / len(self.experts)"),
    "no broadcast": ("expert_parallel", "ExpertParallelMoE",
                     "broadcast(group, whole.parameters())", "pass"),
    "outputs in another order": ("expert_parallel", "ExpertParallelMoE", IN_ORDER,
                                 IN_ORDER.replace("range(each)", "reversed(range(each))")),
    "rows not sorted": ("dispatch", "dispatch", BY_PLACE, "torch.arange(len(places))"),
    "dropped tokens sent": ("dispatch", "dispatch", "routing.kept.nonzero",
                            "torch.ones_like(routing.kept).nonzero"),
    "output not weighted": ("dispatch", "combine",
                            " * sent.weights.unsqueeze(-1)", " + 0 * sent.weights.unsqueeze(-1)"),
    "last tokens first": ("routing", "places_of", "chosen.cumsum(0)",
                          "chosen.flip(0).cumsum(0).flip(0)"),
}  # fmt: skip

COUNTS = ("expert_parallel", "ExpertParallelMoE", "self.exchange(list(by_rank))", "list(by_rank)")

SUMMED = {
    "no sum of the weights' gradient": (
        "expert_parallel", "SummedExperts",
        "weights=copy_to(self.group, all_ranks.weights)", "weights=all_ranks.weights"),
    "no sum of the input's gradient": (
        "expert_parallel", "SummedExperts", "dispatch(copy_to(self.group, tokens), ",
        "dispatch(tokens, "),
    "outputs not summed": ("expert_parallel", "SummedExperts",
                           "reduce_from(self.group, combine(outputs, sent, len(tokens)))",
                           "combine(outputs, sent, len(tokens))"),
}  # fmt: skip

POOLED = {
    "each rank its own shares": (
        "switch", "pooled_switch_loss",
        'group.all_reduce(chosen_shares(expert_index, probabilities.size(-1)), "mean")',
        "chosen_shares(expert_index, probabilities.size(-1))"),
    "divided by the ranks twice": (
        "switch", "pooled_switch_loss", "(shares.to(mean) * mean).sum()",
        "(shares.to(mean) * mean).sum() / group.size"),
    "not in the graph": (
        "switch", "pooled_switch_loss", "_mean(probabilities) / group.size",
        "_mean(probabilities).detach() / group.size"),
}  # fmt: skip

EXCHANGED = {
    "node and place swapped": ("hierarchical", "hierarchical_all_to_all",
                               "n * node.size + j", "j * across.size + n"),
    "nodes in another order": ("hierarchical", "hierarchical_all_to_all",
                               "zip(packed, heads, strict=True) for x",
                               "reversed(list(zip(packed, heads, strict=True))) for x"),
}  # fmt: skip

GATES = {
    "capacity rounded down": (
        "routing", "expert_capacity", "math.ceil(min", "math.floor(min",
        "test_cases.test_C38_capacity_is_rounded_up_and_tokens_keep_their_order"),
    "a factor of 0 is no limit": (
        "switch", "switch_gate", "capacity_factor is not None", "capacity_factor",
        "test_cases.test_C40_a_capacity_factor_of_0_is_refused_and_never_replaced"),
    "softmax over the chosen": (
        "switch", "switch_gate", "probabilities.gather(-1, experts), places",
        "widened(logits).gather(-1, experts).softmax(-1), places",
        "test_switch.test_a_token_goes_to_the_most_probable_expert_with_its_probability_among_all"),
    "loss without E": (
        "switch", "switch_loss", "return probabilities.size(-1) * (shares.to(prob",
        "return (shares.to(prob", "test_cases.test_C44_the_loss_sees_the_routing"),
    "softmax twice": (
        "switch", "switch_loss", "_mean(probabilities)).sum()",
        "_mean(probabilities.softmax(-1))).sum()", "test_cases.test_C44_the_loss_sees_the_routing"),
    "one place for both choices": (
        "gshard", "gshard_gate", "places_of(experts, num_experts)",
        "places_of(experts[:, :1], num_experts).expand(-1, 2)",
        "test_gshard.test_a_group_is_routed_as_algorithm_1_does_by_hand"),
    "weights of the two not scaled to 1": (
        "gshard", "gshard_gate", "chosen / chosen.sum(-1, keepdim=True)", "chosen",
        "test_gshard.test_a_group_is_routed_as_algorithm_1_does_by_hand"),
    "second choices in the loss": (
        "gshard", "gshard_loss", "routing.experts[:, 0]", "routing.experts.flatten()",
        "test_gshard.test_a_group_is_routed_as_algorithm_1_does_by_hand"),
    "second choice with its own probability": (
        "gshard", "gshard_gate", "2 * weights[:, 1]", "weights[:, 1]",
        "test_gshard.test_a_second_choice_is_kept_as_often_as_twice_its_weight"),
    "the largest for each expert's rival": (
        "shazeer", "expected_load", "torch.where(noisy_logits >= inside, outside, inside)",
        "inside", "test_shazeer.test_losses_are_those_of_equations_6_to_11"),
    "load from the counts": (
        "shazeer", "load_loss", "(0.5 * (1 + torch.erf(standard / 2**0.5)))",
        "(noisy_logits >= inside).to(standard)",
        "test_shazeer.test_losses_are_those_of_equations_6_to_11"),
    "importance of what was kept": (
        "router", "NoisyTopKGate", "routing.asked", "routing.gates",
        "test_router.test_its_loss_sees_what_a_capacity_dropped"),
    "router in 16 bits": (
        "router", "Router", "torch.promote_types(tokens.dtype, torch.float32)", "tokens.dtype",
        "test_router.test_logits_are_computed_in_float32_or_better"),
}  # fmt: skip


def wrong(module: str, name: str, old: str, new: str, *_: str) -> Any:
    """What `name` is in `module` with `new` for `old`."""
    return getattr(rewritten(import_module(f"pedagogy.moe.{module}"), old, new), name)
