"""The closed forms of a mixture, against our GPT, PyTorch's counter and the trace of real ranks."""

from __future__ import annotations

import sys
from functools import partial

import cloudpickle
import pytest
import torch

from pedagogy.costs import compute, memory
from pedagogy.costs import moe as costs
from pedagogy.measure import count_flops
from pedagogy.moe import (
    ExpertParallelMoE,
    MoELayer,
    hierarchical_all_to_all,
    mixture,
    switch_gate,
    top_k,
)
from pedagogy.ranks import grid, launch
from pedagogy.workloads import GPT, text_batch

cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROUTES = {1: partial(switch_gate, capacity_factor=None), 2: partial(top_k, k=2)}  # none dropped
SIZES = [  # layers, hidden, experts, vocabulary, sequence, every
    (2, 8, 4, 256, 16, 2),
    (3, 12, 5, 100, 9, 2),
    (4, 16, 3, 256, 8, 1),
    (5, 8, 2, 31, 7, 3),
]


def mixed_gpt(layers, hidden, num_experts, vocabulary, sequence, every, k=1):
    gpt = GPT(vocabulary, layers, hidden, heads=4, sequence=sequence)
    return mixture(gpt, num_experts, lambda: ROUTES[k], every)


@pytest.mark.parametrize("size", SIZES)
def test_parameters_are_those_of_our_gpt_with_mixtures(size):
    held = sum(parameter.numel() for parameter in mixed_gpt(*size).parameters())
    assert compute.moe_parameters(*size) == held


@pytest.mark.parametrize(
    ("size", "k"), [(SIZES[0], 2), (SIZES[1], 1), (SIZES[2], 2), (SIZES[3], 1)]
)
def test_flops_per_token_are_pytorchs_count_router_included(size, k):
    layers, hidden, num_experts, vocabulary, sequence, every = size
    model = mixed_gpt(*size, k=k)
    inputs, targets = (ids % vocabulary for ids in text_batch(3, sequence))
    counted = count_flops(lambda: model.loss(inputs, targets).backward())
    predicted = compute.flops_per_token(layers, hidden, sequence, vocabulary, num_experts, k, every)
    assert predicted * inputs.numel() == counted


def test_one_expert_is_the_dense_gpt():
    assert costs.moe_parameters(3, 8, 1, 50, 5) == memory.gpt_parameters(3, 8, 50, 5)
    assert 10 * costs.flops_per_token(1, 8, 5, 50) == compute.gpt_training_flops(1, 8, 5, 2, 50)


def test_more_experts_cost_parameters_and_for_each_token_only_the_routers_flops():
    few, many = ({"layers": 4, "hidden": 64, "num_experts": e} for e in (8, 64))
    assert costs.moe_parameters(**many) > 6 * costs.moe_parameters(**few)
    more = costs.flops_per_token(sequence=64, **many) - costs.flops_per_token(sequence=64, **few)
    assert more == 2 * 3 * 2 * 64 * (64 - 8)  # two mixtures, forward and backward, 2 h E
    assert more < 0.1 * costs.flops_per_token(sequence=64, **few)


def without_tables(model):
    """Parameters but for the tables, of which this version of the library ties what it likes."""
    tables = ("shared", "embed_tokens", "lm_head")
    return sum(
        parameter.numel()
        for name, parameter in model.named_parameters()
        if not any(table in name for table in tables)
    )


def test_t5_and_switch_parameters_are_those_of_another_implementation():
    t5 = pytest.importorskip("transformers.models.t5")
    switch = pytest.importorskip("transformers.models.switch_transformers")
    small = {"vocab_size": 10, "d_model": 24, "d_kv": 8, "d_ff": 40, "num_heads": 5}
    shape, tables = (4, 24, 40, 5, 8), 2 * 10 * 24
    with torch.device("meta"):
        gated = t5.T5Config(**small, num_layers=4, feed_forward_proj="gated-gelu")
        dense = without_tables(t5.T5ForConditionalGeneration(gated))
        assert costs.t5_parameters(*shape, vocabulary=10) == dense + tables
        for every in (1, 2):
            parts = {
                "num_sparse_encoder_layers": 4 // every,
                "num_sparse_decoder_layers": 4 // every,
            }
            config = switch.SwitchTransformersConfig(
                **small, **parts, num_layers=4, num_decoder_layers=4, num_experts=6
            )
            held = without_tables(switch.SwitchTransformersForConditionalGeneration(config))
            predicted = costs.t5_parameters(*shape, 6, every, matrices=2, vocabulary=10)
            assert predicted == held + tables


@pytest.mark.parametrize("k", [1, 2])
def test_a_gate_of_two_levels_multiplies_least_at_the_root_of_k_times_the_experts(k):
    num_experts = 4096 // k
    divisors = [g for g in range(2, num_experts) if num_experts % g == 0]
    by_groups = {g: costs.gate_multiplications(8, num_experts, g, k) for g in divisors}
    assert min(by_groups, key=by_groups.get) == 64  # sqrt(k * experts)
    assert by_groups[64] == 8 * 2 * 64
    assert costs.gate_multiplications(8, num_experts, k=k) == 8 * num_experts


def test_a_gate_of_two_levels_multiplies_as_often_as_nested_mixtures_do():
    """The inner experts are nothing but constants, so that the routers alone compute."""

    def inner(hidden):
        return MoELayer(hidden, 4, ROUTES[1], lambda hidden: torch.nn.Identity())

    layer = MoELayer(8, 3, ROUTES[2], inner)
    flops = count_flops(layer, torch.randn(5, 8))
    assert flops == 5 * 2 * costs.gate_multiplications(8, 12, num_groups=3, k=2)


def test_an_experts_batch_shrinks_with_the_experts_and_grows_with_the_ranks():
    assert costs.expert_batch(1024, 4, 256) == 16
    assert costs.expert_batch(1024, 4, 256, ranks=16) == 256
    assert costs.expert_batch(10, 1, 4) == 2.5


# --- what ranks send ------------------------------------------------------------------------------

NODES, PER_NODE, RANKS, HIDDEN = 2, 3, 6, 4


def exchanged(group):
    """Messages and bytes of a flat and a two-level exchange, then of a layer's training step."""
    axes = grid(group, node=NODES, place=PER_NODE)
    xs = [torch.ones(5, dtype=torch.float64) for _ in range(RANKS)]
    start = len(group.events)
    group.all_to_all(xs)
    hierarchical_all_to_all(axes["place"], axes["node"], xs)
    seen = [(len(e.peers), e.nbytes) for e in group.events[start:] if e.kind == "all_to_all"]

    torch.manual_seed(0)
    layer = ExpertParallelMoE(group, MoELayer(HIDDEN, 2 * RANKS, ROUTES[2]))
    x = torch.randn(7, HIDDEN, generator=torch.Generator().manual_seed(group.rank))
    start = len(group.events)
    layer(x.requires_grad_()).sum().backward()
    sent = sum(e.nbytes for e in group.events[start:] if e.kind == "all_to_all")
    elsewhere = int((layer.last.experts // 2 != group.rank).sum())
    return seen, sent, elsewhere


def test_messages_and_bytes_are_those_that_ranks_send():
    run = list(launch(exchanged, RANKS))
    num_bytes = RANKS * 5 * 8
    flat, two = costs.flat_bytes(num_bytes, 6, 3), costs.two_level_bytes(num_bytes, 6, 3)
    messages = costs.two_level_messages(6, 3)
    for seen, _, _ in run:
        whole, inside, _, between, _ = seen  # between them, the shapes
        assert whole == (sum(costs.flat_messages(6, 3)), sum(flat))
        assert inside == (messages.inside, two.inside)
        assert between == (messages.between, two.between)
        assert seen[2] == (messages.inside, messages.inside * NODES * 56)
    elsewhere = sum(one for _, _, one in run)
    counts = RANKS * (2 * RANKS - 2) * 8
    assert sum(sent for _, sent, _ in run) == counts + costs.expert_parallel_bytes(
        elsewhere, HIDDEN
    )


def test_messages_between_nodes_by_hand():
    assert costs.flat_messages(64, 8) == (7, 56)
    assert costs.two_level_messages(64, 8) == (7, 7)
    assert costs.flat_bytes(640, 64, 8) == (70, 560)
    assert costs.two_level_bytes(640, 64, 8) == (560, 560)


def seconds_of_both_ways(num_bytes, ranks, per_node, inside, between):
    size, links = (ranks, per_node), (inside, between)
    flat = costs.exchange_seconds(
        costs.flat_messages(*size), costs.flat_bytes(num_bytes, *size), *links
    )
    two = costs.exchange_seconds(
        costs.two_level_messages(*size), costs.two_level_bytes(num_bytes, *size), *links
    )
    return flat, two


def test_seconds_are_alpha_for_each_message_and_time_for_the_bytes():
    inside, between = costs.Link(1.0, 10.0), costs.Link(100.0, 2.0)
    flat, two = seconds_of_both_ways(640, 64, 8, inside, between)
    assert flat == 7 * 1 + 70 / 10 + 56 * 100 + 560 / 2
    assert two == 7 * 1 + 560 / 10 + 7 * 100 + 560 / 2


@pytest.mark.parametrize(("ranks", "per_node"), [(16, 8), (64, 8), (64, 2), (12, 3)])
def test_two_levels_pay_below_one_size_whatever_the_node(ranks, per_node):
    inside, between = costs.Link(3e-6, 200e9), costs.Link(12e-6, 20e9)
    size = costs.two_levels_pay_below(ranks, inside, between)
    assert size == pytest.approx(ranks * 12e-6 * 200e9)
    for share, faster in ((0.99, 1), (1.01, 0)):
        both = seconds_of_both_ways(share * size, ranks, per_node, inside, between)
        assert both.index(min(both)) == faster


@pytest.mark.parametrize("per_node", [1, 8])
def test_with_one_rank_a_node_or_one_node_both_ways_are_the_same(per_node):
    flat, two = seconds_of_both_ways(1e6, 8, per_node, costs.Link(1, 2), costs.Link(3, 5))
    assert flat == pytest.approx(two)


# --- bad input ------------------------------------------------------------------------------------

LINK = costs.Link(1e-6, 1e9)
REFUSED = [
    (lambda: costs.expert_parameters(0, 4), "hidden is 0"),
    (lambda: costs.moe_parameters(2, 8, 0), "num_experts is 0"),
    (lambda: costs.moe_parameters(2, 8, 4, every=3), "every = 3 with 2 layers"),
    (lambda: costs.moe_parameters(2, 8, 4, every=0), "every is 0"),
    (lambda: costs.flops_per_token(2, 8, 0), "sequence is 0"),
    (lambda: costs.flops_per_token(2, 8, 4, k=2), "k = 2 of 1"),
    (lambda: costs.flops_per_token(2, 8, 4, num_experts=4, k=0), "k = 0 of 4"),
    (lambda: costs.t5_parameters(0, 8, 16, 2, 4), "layers is 0"),
    (lambda: costs.t5_parameters(2, 8, 16, 0, 4), "heads is 0"),
    (lambda: costs.gate_multiplications(8, 10, 4), "10 experts in 4 groups: 8 or 12"),
    (lambda: costs.gate_multiplications(8, 12, 3, k=4), "k = 4 of 3"),
    (lambda: costs.gate_multiplications(8, 4, k=5), "k = 5 of 4"),
    (lambda: costs.expert_batch(0, 1, 4), "tokens is 0"),
    (lambda: costs.expert_batch(8, 5, 4), "k = 5 of 4"),
    (lambda: costs.expert_parallel_bytes(-1, 8), "-1 choices"),
    (lambda: costs.expert_parallel_bytes(1, 0), "0 numbers"),
    (lambda: costs.flat_messages(10, 4), "10 ranks in nodes of 4: 8 or 12"),
    (lambda: costs.two_level_messages(4, 0), "nodes of 0"),
    (lambda: costs.two_level_bytes(-1, 4, 2), "-1 bytes"),
    (lambda: costs.exchange_seconds((1, 1), (1, 1), LINK, (1e-6, 0)), "0 bytes/s"),
    (lambda: costs.two_levels_pay_below(4, costs.Link(-1, 1), LINK), "alpha -1"),
    (lambda: costs.two_levels_pay_below(0, LINK, LINK), "0 ranks"),
]


@pytest.mark.parametrize(("call", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_impossible_numbers_are_refused_by_name(call, says):
    with pytest.raises(ValueError, match=says):
        call()
