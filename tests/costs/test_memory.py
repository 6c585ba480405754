"""Closed forms of memory: against published models, the real model, and the memory meter."""

from __future__ import annotations

import pytest
import torch

from pedagogy.costs import memory, published
from pedagogy.measure import memory_meter
from pedagogy.parameters import shard_numel
from pedagogy.workloads import GPT, text_batch

SIZES = [  # layers, hidden, heads, sequence, batch, vocabulary
    (1, 8, 1, 4, 1, 11),
    (2, 64, 4, 64, 4, 256),
    (3, 24, 3, 17, 5, 256),
    (2, 32, 8, 96, 2, 50),
    (4, 16, 2, 8, 1, 256),
]


@pytest.mark.parametrize(
    ("precision", "optimizer", "bytes_per_parameter"),
    [
        ("mixed", "adam", 2 + 2 + 4 + 4 + 4),
        ("fp32", "adam", 4 + 4 + 4 + 4),
        ("half", "adam", 2 + 2 + 2 + 2),
        ("mixed", "momentum", 2 + 2 + 4 + 4),
        ("fp32", "momentum", 4 + 4 + 4),
        ("mixed", "sgd", 2 + 2 + 4),
        ("fp32", "sgd", 4 + 4),
    ],
)
def test_bytes_per_parameter(precision, optimizer, bytes_per_parameter):
    assert memory.model_state_bytes(1000, precision, optimizer) == 1000 * bytes_per_parameter


def test_K01_adam_needs_16_bytes_per_parameter_not_8():
    num_bytes = memory.model_state_bytes(7 * 10**9)
    assert num_bytes == memory.model_state_bytes(7 * 10**9, "fp32") == 112 * 10**9
    assert round(num_bytes / 2**30, 1) == 104.3
    moments = 2 * 4 * 7 * 10**9
    assert moments == 56 * 10**9  # the popular figure: two of the five parts


def test_mixed_precision_keeps_12_of_its_16_bytes_in_the_optimizer():
    kinds = memory.model_states(10)
    assert kinds == {"parameters": 20, "gradients": 20, "optimizer_state": 120}


def test_unknown_names_and_negative_numbers_are_refused_with_the_choices():
    with pytest.raises(ValueError, match="'fp8': choose one of 'mixed', 'fp32', 'half'"):
        memory.model_state_bytes(1, precision="fp8")
    with pytest.raises(ValueError, match="'lion': choose one of 'adam', 'momentum', 'sgd'"):
        memory.model_state_bytes(1, optimizer="lion")
    with pytest.raises(ValueError, match="-1 parameters"):
        memory.model_state_bytes(-1)


@pytest.mark.parametrize(
    ("optimizer", "name"),
    [
        (lambda p: torch.optim.Adam(p), "adam"),
        (lambda p: torch.optim.SGD(p, momentum=0.9), "momentum"),
        (lambda p: torch.optim.SGD(p), "sgd"),
    ],
)
def test_model_states_are_what_the_meter_sees(optimizer, name):
    model = torch.nn.Linear(7, 5)
    optimizer = optimizer(model.parameters())
    with memory_meter(model, optimizer) as meter:
        model(torch.ones(1, 7)).sum().backward()
        optimizer.step()
    counters = 2 * 4 if name == "adam" else 0  # one step counter for each of two tensors
    predicted = memory.model_states(7 * 5 + 5, "fp32", name)
    predicted["optimizer_state"] += counters
    assert {kind: meter.now_by_kind[kind] for kind in predicted} == predicted


@pytest.mark.parametrize("row", published.table("megatron_table1_scaling").rows)
def test_megatrons_scaling_study_is_reproduced_to_the_printed_digit(row):
    count = memory.transformer_parameters(row["layers"], row["hidden"], 51_200, 1024)
    assert round(count / 1e9, 1) == row["params_B"]


@pytest.mark.parametrize(
    ("hidden", "billions"), [(1536, 1.213), (1920, 2.490), (2304, 4.199), (3072, 8.317)]
)
def test_megatrons_scaling_study_to_four_digits_as_its_table_was_checked(hidden, billions):
    rows = published.table("megatron_table1_scaling").rows
    layers = next(row["layers"] for row in rows if row["hidden"] == hidden)
    count = memory.transformer_parameters(layers, hidden, 51_200, 1024)
    assert round(count / 1e9, 3) == billions


@pytest.mark.parametrize("row", published.table("megatron_models").rows)
def test_megatrons_trained_models_are_reproduced_to_the_printed_digits(row):
    hidden, bert = row["hidden"], row["family"] == "BERT"
    # 50,257 and 30,522 tokens, padded to multiples of 1,024 and 128
    vocabulary, sequence = (30_592, 512) if bert else (51_200, 1024)
    count = memory.transformer_parameters(row["layers"], hidden, vocabulary, sequence)
    if bert:
        count += 2 * hidden**2  # the pooler and the output's dense layer, not in the formula
    # billions are printed with one decimal, rounded; 355M is 355.8, so cut off, not rounded
    tolerance = 0.05e9 if row["params"].endswith("B") else 1e6
    assert abs(count - published.quantity(row["params"])) < tolerance


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_our_gpt_has_the_parameters_and_buffers_that_the_formula_says(size, tied):
    layers, hidden, heads, sequence, _, vocabulary = size
    model = GPT(vocabulary, layers, hidden, heads, sequence, tied)
    count = sum(p.numel() for p in model.parameters())
    assert memory.gpt_parameters(layers, hidden, vocabulary, sequence, tied) == count
    assert memory.gpt_buffer_bytes(layers, sequence) == sum(b.nbytes for b in model.buffers())


@pytest.mark.parametrize(
    ("vocabulary", "tied", "count"),
    [(50_257, True, 124_439_808), (50_304, True, 124_475_904), (50_257, False, 163_037_184)],
)
def test_K18_gpt2_small_counts_depend_on_tying_and_padding(vocabulary, tied, count):
    assert memory.gpt_parameters(12, 768, vocabulary, 1024, tied) == count
    with torch.device("meta"):
        model = GPT(vocabulary, 12, 768, 12, 1024, tied)
    assert sum(p.numel() for p in model.parameters()) == count


def test_K18_a_moment_of_padded_gpt2_small_is_an_eighth_on_each_of_8_ranks():
    count = memory.gpt_parameters(12, 768, 50_304, 1024)
    assert memory.model_states(count)["parameters"] == 248_951_808
    assert round(4 * count / 2**20, 1) == 474.8
    assert round(4 * shard_numel(count, 8) / 2**20, 1) == 59.4


@pytest.mark.parametrize("size", SIZES)
def test_activations_of_our_gpt_are_predicted_to_the_byte(size):
    layers, hidden, heads, sequence, batch, vocabulary = size
    model = GPT(vocabulary, layers, hidden, heads, sequence)
    inputs, targets = (ids % vocabulary for ids in text_batch(batch, sequence))
    with memory_meter(model) as meter:
        loss = model.loss(inputs, targets)
        measured = meter.now_by_kind["activations"]
        loss.backward()
    predicted = memory.gpt_activation_bytes(layers, hidden, heads, sequence, batch, vocabulary)
    assert measured == predicted


PEAKS = [  # layers, hidden, heads, sequence, batch, vocabulary; at the start of backward, exactly
    ((2, 64, 4, 64, 4, 256), 0),
    ((3, 24, 3, 17, 5, 256), 0),
    ((2, 128, 4, 64, 8, 256), 0),
    # at the update: Adam on a CPU makes two tensors as large as the largest weight
    ((6, 64, 4, 8, 1, 16), 2 * 4 * 4 * 64 * 64),
    ((4, 128, 4, 16, 1, 64), 2 * 4 * 4 * 128 * 128),
    ((3, 128, 2, 4, 1, 2000), 2 * 4 * 128 * 2000),
]


@pytest.mark.parametrize(("size", "scratch"), PEAKS)
def test_the_peak_of_the_second_step_is_the_higher_of_its_two_moments(size, scratch):
    layers, hidden, heads, sequence, batch, vocabulary = size
    model = GPT(vocabulary, layers, hidden, heads, sequence)
    optimizer = torch.optim.Adam(model.parameters())
    inputs, targets = (ids % vocabulary for ids in text_batch(batch, sequence))
    for _ in range(2):
        with memory_meter(model, optimizer) as meter:
            model.loss(inputs, targets).backward()
            optimizer.step()
            optimizer.zero_grad()
    predicted = memory.gpt_peak_bytes(layers, hidden, heads, sequence, batch, vocabulary)
    assert (predicted["gradients"] == 0) == (scratch == 0)
    assert (predicted["activations"] == 0) == (scratch > 0)
    left_out = meter.by_kind["buffers"] + 4 * len(list(model.parameters()))  # and step counters
    measured = meter.peak - left_out
    small = 4 * 4 * hidden if scratch else 0  # at most the scratch of one bias besides
    total = sum(predicted.values()) + scratch
    assert total <= measured <= total + small


@pytest.mark.parametrize("size", SIZES)
def test_the_peak_is_never_below_the_formula_nor_a_third_above_it(size):
    layers, hidden, heads, sequence, batch, vocabulary = size
    model = GPT(vocabulary, layers, hidden, heads, sequence)
    optimizer = torch.optim.Adam(model.parameters())
    inputs, targets = (ids % vocabulary for ids in text_batch(batch, sequence))
    for _ in range(2):
        with memory_meter(model, optimizer) as meter:
            model.loss(inputs, targets).backward()
            optimizer.step()
            optimizer.zero_grad()
    predicted = sum(
        memory.gpt_peak_bytes(layers, hidden, heads, sequence, batch, vocabulary).values()
    )
    assert predicted <= meter.peak <= 4 / 3 * predicted


def test_in_16_bit_the_peak_holds_no_gradient_beside_the_activations():
    shape = {"layers": 48, "hidden": 1600, "heads": 25, "sequence": 1024}
    held = memory.gpt_peak_bytes(**shape, batch=1, vocabulary=50257, precision="mixed")
    kept = memory.gpt_activation_bytes(**shape, batch=1, vocabulary=50257, bytes_per_element=2)
    count = memory.gpt_parameters(48, 1600, 50257, 1024)
    assert held == {
        "parameters": 2 * count,
        "gradients": 0,
        "optimizer_state": 12 * count,
        "activations": kept + 2 * 2 * 1024 * 50257,
    }


def test_inputs_and_targets_made_inside_the_meter_add_16_bytes_a_token():
    model = GPT()
    with memory_meter(model) as meter:
        inputs, targets = (torch.zeros(2, 64, dtype=torch.int64) for _ in range(2))
        loss = model.loss(inputs, targets)
        measured = meter.now_by_kind["activations"]
        loss.backward()
    assert measured == memory.gpt_activation_bytes(2, 64, 4, 64, 2) + 16 * 2 * 64


def test_each_term_of_a_layer_is_what_that_part_keeps_alone():
    layers, hidden, heads, sequence, batch = 1, 24, 3, 16, 2
    block = GPT(256, layers, hidden, heads, sequence).blocks[0]
    terms = memory.gpt_activation_terms(layers, hidden, heads, sequence, batch)
    x_bytes = 4 * batch * sequence * hidden
    kept = {}
    for name, part, own_output in (
        ("attention_norm", block.attention_norm, 0),
        ("attention", block.attention, x_bytes),
        ("feed_forward", block.feed_forward, x_bytes),
    ):
        with memory_meter(block) as meter:
            x = torch.zeros(batch, sequence, hidden, requires_grad=True)
            y = part(x)
            kept[name] = meter.now_by_kind["activations"] - own_output
            del x, y
    # x stands for what came before: the norm's input, or its output, which the next part keeps
    assert kept["attention"] == terms["attention"] + terms["probabilities"]
    assert kept["feed_forward"] == terms["feed_forward"]
    assert 2 * (kept["attention_norm"] - x_bytes) == terms["norms"]
