"""The closed forms of cut layers, against what the papers printed and against sums done by hand."""

from __future__ import annotations

import pytest
import torch

from pedagogy.costs import activations, memory, published
from pedagogy.measure import count_flops
from pedagogy.workloads import Block

GB, GIB = 10**9, 2**30
GPT3 = {"sequence": 2048, "batch": 1, "hidden": 12288, "heads": 96}
TABLE_3 = {row["model"]: row for row in published.table("korthikanti_table3_configs").rows}


def shape(model: str) -> dict[str, int]:
    """The shape of a layer in the table of configurations."""
    row = TABLE_3[model]
    return {
        "sequence": 2048,
        "batch": row["micro_batch"],
        "hidden": row["hidden"],
        "heads": row["heads"],
    }


def per_sbh(sizes: dict[str, int], **how: object) -> float:
    """Bytes of a layer in units of s b h, as the paper writes them."""
    unit = sizes["sequence"] * sizes["batch"] * sizes["hidden"]
    return memory.activation_bytes_per_layer(**sizes, **how) / unit


K11 = [  # how, GB a layer, GiB in 96 layers
    ({}, 2.869, 256.5),
    ({"tensor_parallel": 8}, 0.579, 51.75),
    ({"tensor_parallel": 8, "sequence_parallel": True}, 0.359, 32.06),
    (
        {"tensor_parallel": 8, "sequence_parallel": True, "recompute": "selective"},
        0.107,
        9.56,
    ),
    ({"recompute": "full"}, 0.0503, 4.5),
]


@pytest.mark.parametrize(("how", "gigabytes", "gibibytes"), K11)
def test_K11_gpt3_keeps_these_bytes_of_a_layer(how, gigabytes, gibibytes):
    num_bytes = memory.activation_bytes_per_layer(**GPT3, **how)
    assert num_bytes / GB == pytest.approx(gigabytes, abs=0.0005)
    assert 96 * num_bytes / GIB == pytest.approx(gibibytes, abs=0.005)


def test_K11_a_layer_in_gib_is_not_a_layer_in_gb():
    assert memory.activation_bytes_per_layer(**GPT3) / GIB == pytest.approx(2.672, abs=0.0005)


@pytest.mark.parametrize("model", TABLE_3)
def test_the_papers_table_of_formulas_holds_for_its_four_models(model):
    sizes, t = shape(model), TABLE_3[model]["tp"]
    core = 5 * sizes["heads"] * sizes["sequence"] / sizes["hidden"]
    cut = {"tensor_parallel": t}
    both = {**cut, "sequence_parallel": True}
    assert per_sbh(sizes) == pytest.approx(34 + core, rel=1e-12)
    assert per_sbh(sizes, **cut) == pytest.approx(10 + 24 / t + core / t, rel=1e-12)
    assert per_sbh(sizes, **both) == pytest.approx((34 + core) / t, rel=1e-12)
    assert per_sbh(sizes, **cut, recompute="selective") == 10 + 24 / t
    assert per_sbh(sizes, **both, recompute="selective") == 34 / t
    assert per_sbh(sizes, recompute="full") == per_sbh(sizes, **cut, recompute="full") == 2


@pytest.mark.parametrize(("model", "core", "saved"), [("175B", 80, 0.70), ("530B", 64, 0.65)])
def test_the_scores_are_80_of_gpt3s_114_and_64_of_mt_nlgs_98(model, core, saved):
    sizes = shape(model)
    without = per_sbh(sizes, recompute="selective")
    assert without == 34
    assert per_sbh(sizes) - without == core
    assert core / (34 + core) == pytest.approx(saved, abs=0.005)


@pytest.mark.parametrize(
    ("model", "share"), [("22B", 0.161), ("175B", 0.185), ("530B", 0.202), ("1T", 0.202)]
)
def test_both_techniques_leave_a_fifth_of_tensor_parallelism_though_the_text_says_less(
    model, share
):
    cut = {"tensor_parallel": 8}
    both = {**cut, "sequence_parallel": True, "recompute": "selective"}
    assert per_sbh(shape(model), **both) / per_sbh(shape(model), **cut) == pytest.approx(
        share, abs=0.0005
    )


@pytest.mark.parametrize(("model", "fewer"), [("22B", 6.2), ("175B", 5.4), ("530B", 4.9)])
def test_that_is_the_printed_five_times_fewer(model, fewer):
    cut = {"tensor_parallel": 8}
    both = {**cut, "sequence_parallel": True, "recompute": "selective"}
    assert per_sbh(shape(model), **cut) / per_sbh(shape(model), **both) == pytest.approx(
        fewer, abs=0.05
    )


def test_halves_and_norms_are_the_papers_11_19_and_4():
    terms = memory.activation_terms_per_layer(**GPT3)
    unit = GPT3["sequence"] * GPT3["hidden"]
    scores = GPT3["heads"] * GPT3["sequence"] ** 2
    attention = ("attention_input", "queries_and_keys", "values", "projection_input")
    feed_forward = ("feed_forward_input", "before_gelu", "after_gelu", "feed_forward_dropout_mask")
    core = ("softmax_output", "softmax_dropout_mask", "softmax_dropout_output")
    assert sum(terms[name] for name in (*attention, "attention_dropout_mask")) == 11 * unit
    assert sum(terms[name] for name in feed_forward) == 19 * unit
    assert sum(terms[name] for name in core) == 5 * scores
    assert terms["norm_inputs"] == 4 * unit


def test_the_first_stage_holds_all_layers_whatever_the_number_of_stages():
    assert activations.first_stage_factor(1) == activations.first_stage_factor(35) == 1
    # three chunks on 8 stages: 1 + 7/24; four stages of two: 5.5 layers' chunks in place of 4
    assert activations.first_stage_factor(8, 3) == pytest.approx(1 + 7 / 24)
    assert 4 * activations.first_stage_factor(4, 2) == 5.5


def first_stage(model: str, chunks: int, **how: object) -> float:
    """GiB of activations on a rank of the first stage."""
    row = TABLE_3[model]
    layers = row["layers"] * memory.activation_bytes_per_layer(
        **shape(model), tensor_parallel=row["tp"], **how
    )
    return layers * activations.first_stage_factor(row["pp"], chunks) / GIB


@pytest.mark.parametrize(
    ("model", "chunks", "before", "after"),
    [  # from s b h L (10 + 24/8 + c/8) and s b h L 34/8, by hand, times 1 + (p - 1)/(3 p) if m = 3
        ("22B", 1, 2.25 * (13 + 640 / 48), 2.25 * 4.25),
        ("175B", 3, 2.25 * (13 + 10) * 31 / 24, 2.25 * 4.25 * 31 / 24),
        ("530B", 3, 4.1015625 * (13 + 8) * 139 / 105, 4.1015625 * 4.25 * 139 / 105),
        ("1T", 1, 6.25 * (13 + 8), 6.25 * 4.25),
    ],
)
def test_the_first_stages_of_the_four_models_hold_these_gib_before_and_after(
    model, chunks, before, after
):
    both = {"sequence_parallel": True, "recompute": "selective"}
    assert first_stage(model, chunks) == pytest.approx(before, rel=1e-12)
    assert first_stage(model, chunks, **both) == pytest.approx(after, rel=1e-12)


def test_what_the_first_stage_keeps_besides_is_half_a_percent_for_22B():
    row = TABLE_3["22B"]
    extra = activations.first_stage_extra_bytes(2048, 4, 6144, 51_200, tensor_parallel=row["tp"])
    unit = 2048 * 4 * 6144 / 8
    assert extra == pytest.approx(unit * (1 + 4 * (1 + 51_200 / 6144)), rel=1e-12)
    layers = row["layers"] * memory.activation_bytes_per_layer(
        **shape("22B"), tensor_parallel=8, sequence_parallel=True
    )
    assert 0.005 < extra / layers < 0.006


def test_the_printed_2_73_GB_of_530B_are_gib_of_two_bytes():
    elements = activations.first_stage_extra_bytes(2048, 1, 20480, 51_200, num_stages=35)
    assert elements / GIB == pytest.approx(1.37, abs=0.005)  # a mask keeps one byte an element
    assert 2 * elements / GIB == pytest.approx(2.73, abs=0.005)
    assert 2 * elements / GB == pytest.approx(2.94, abs=0.005)


@pytest.mark.parametrize(("model", "printed"), [("175B", 0.027), ("530B", 0.016)])
def test_the_printed_recomputed_flops_are_a_ratio_and_not_s_over_6h(model, printed):
    hidden = TABLE_3[model]["hidden"]
    ratio = activations.selective_flops_fraction_as_printed(2048, hidden)
    assert ratio == pytest.approx(printed, abs=0.0005)
    assert abs(2048 / (6 * hidden) - printed) > 0.0005  # 2.78 % and 1.67 %


@pytest.mark.parametrize(("sequence", "hidden", "heads"), [(16, 24, 2), (64, 32, 4)])
def test_recomputing_scores_adds_a_third_of_the_printed_flops(sequence, hidden, heads):
    block = Block(hidden, heads, sequence)
    x = torch.zeros(1, sequence, hidden, requires_grad=True)
    step = count_flops(lambda: block(x).sum().backward())
    q = torch.zeros(1, heads, sequence, hidden // heads)
    again = count_flops(lambda: (q @ q.transpose(-2, -1)) @ q)
    fraction = activations.selective_flops_fraction(sequence, hidden)
    assert again / step == pytest.approx(fraction, rel=1e-12)
    printed = activations.selective_flops_fraction_as_printed(sequence, hidden)
    assert printed == pytest.approx(3 * fraction, rel=1e-12)


def test_the_overheads_of_the_layer_times_are_those_of_their_milliseconds():
    rows = published.table("korthikanti_table4_layertime").rows
    baseline = rows[0]["combined_ms"]
    for row in rows:
        assert row["forward_ms"] + row["backward_ms"] == pytest.approx(row["combined_ms"], abs=0.05)
    overheads = {row["experiment"]: row["combined_ms"] / baseline - 1 for row in rows[1:]}
    for row in rows[1:]:
        assert 100 * overheads[row["experiment"]] == pytest.approx(row["overhead_pct"], abs=0.5)
    both, full = overheads["selective + sequence"], overheads["baseline with recompute"]
    assert 1 - both / full == pytest.approx(0.9, abs=0.01)  # "90 % of the overhead removed"


# --- our layer ------------------------------------------------------------------------------------

OURS = {"sequence": 12, "batch": 3, "hidden": 24, "heads": 4}


@pytest.mark.parametrize("kept", ["whole", "gathered", "shard"])
def test_one_ranks_layer_is_the_ordinary_one(kept):
    terms = memory.gpt_layer_activation_terms(**OURS, kept=kept)
    whole = memory.gpt_activation_terms(1, 24, 4, 12, 3)
    assert sum(terms.values()) == sum(whole.values()) - whole["output"]


@pytest.mark.parametrize("t", [1, 2, 4])
def test_our_layer_in_16_bit_with_dropout_is_the_papers_but_for_the_statistics(t):
    statistics = 2 * 4 * 12 * 3
    for kept, sequence_parallel in (("whole", False), ("shard", True)):
        ours = memory.gpt_layer_activation_terms(
            **OURS, tensor_parallel=t, kept=kept, dropout=True, bytes_per_element=2
        )
        paper = memory.activation_bytes_per_layer(
            **OURS, tensor_parallel=t, sequence_parallel=sequence_parallel
        )
        assert sum(ours.values()) == paper + statistics // (t if sequence_parallel else 1)


@pytest.mark.parametrize("t", [1, 2, 4])
def test_our_layer_is_the_closed_form_of_the_module(t):
    tokens, sbh, scores = 12 * 3, 12 * 3 * 24, 4 * 12**2 * 3
    expected = {
        "whole": 4 * sbh + 12 * sbh / t + scores / t + 4 * tokens,
        "gathered": 2 * sbh + 14 * sbh / t + scores / t + 4 * tokens / t,
        "shard": (16 * sbh + scores + 4 * tokens) / t,
    }
    for kept, elements in expected.items():
        terms = memory.gpt_layer_activation_terms(**OURS, tensor_parallel=t, kept=kept)
        assert sum(terms.values()) == 4 * elements


def test_gathered_inputs_are_all_that_the_shard_saves():
    gathered, shard = (
        memory.gpt_layer_activation_terms(**OURS, tensor_parallel=4, kept=kept)
        for kept in ("gathered", "shard")
    )
    different = {name for name in shard if shard[name] != gathered[name]}
    assert different == {"inputs_of_halves"}
    assert gathered["inputs_of_halves"] == 4 * shard["inputs_of_halves"]


def test_wrong_arguments_are_refused_with_what_would_do():
    with pytest.raises(ValueError, match="'some': choose one of 'none', 'selective', 'full'"):
        memory.activation_bytes_per_layer(**OURS, recompute="some")
    with pytest.raises(ValueError, match="heads is 4, which 3 ranks do not divide; 3 or 6"):
        memory.activation_bytes_per_layer(**OURS, tensor_parallel=3)
    with pytest.raises(ValueError, match="sequence is 6, which 4 ranks do not divide; 4 or 8"):
        memory.activation_bytes_per_layer(6, 1, 24, 4, tensor_parallel=4, sequence_parallel=True)
    with pytest.raises(ValueError, match="0 ranks: must be 1 or more"):
        memory.activation_bytes_per_layer(**OURS, tensor_parallel=0)
    with pytest.raises(ValueError, match="'some': choose one of 'whole', 'gathered', 'shard'"):
        memory.gpt_layer_activation_terms(**OURS, kept="some")
    with pytest.raises(ValueError, match="0 stages of 1 chunks: must be 1 or more"):
        activations.first_stage_factor(0)


# --- parameters -----------------------------------------------------------------------------------


@pytest.mark.parametrize("row", published.table("megatron_table1_scaling").rows)
def test_megatrons_scaling_study_puts_about_a_billion_parameters_on_each_rank(row):
    t = row["model_parallel_gpus"]
    sizes = (row["layers"], row["hidden"], 51_200, 1024)
    held = memory.gpt_parameters_per_rank(*sizes, tensor_parallel=t)
    whole = held["norms"] + held["biases"] + held["positions"]
    cut = held["layers_cut"] + held["vocabulary_cut"]
    assert cut * t + whole == memory.gpt_parameters(*sizes)
    # the layers and the vocabulary are cut evenly: what is more than 1/t is whole
    more = (cut + whole) / (memory.gpt_parameters(*sizes) / t) - 1
    assert 0 <= more < 0.005
    assert 1.03e9 < cut + whole < 1.25e9


def test_K10_norms_are_whole_on_every_rank():
    llama = {"layers": 32, "hidden": 4096, "vocabulary": 32_000, "sequence": 4096}
    for t in (1, 2):
        norms = memory.gpt_parameters_per_rank(**llama, tensor_parallel=t)["norms"]
        assert norms == 2 * 266_240  # a LayerNorm's weight and bias; an RMSNorm has the weight
    assert (2 * 32 + 1) * 4096 == 266_240
    assert 32 * 4096 // 2 == 65_536  # one norm a layer, divided by the ranks: the mistake
