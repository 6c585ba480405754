"""Bytes in 16 bits: closed forms against the memory meter; speed against its limits."""

from __future__ import annotations

import pytest
import torch

from pedagogy.costs import memory, precision
from pedagogy.costs.precision import DEVICES, PRECISIONS
from pedagogy.measure import memory_meter
from pedagogy.precision import MasterWeights
from pedagogy.precision.schemes import token_loss
from pedagogy.workloads import GPT

FP32, AUTOCAST, MASTER = PRECISIONS
SIZES = [  # layers, hidden, heads, sequence, batch, vocabulary
    (1, 24, 3, 17, 5, 50),
    (2, 64, 4, 32, 4, 256),
]
WAYS = [(FP32, torch.float32)] + [
    (way, dtype) for way in (AUTOCAST, MASTER) for dtype in (torch.bfloat16, torch.float16)
]


def measured(way, dtype, layers, hidden, heads, sequence, batch, vocabulary):
    """By kind: after forward, at the peak, and the most of each kind, in the second step."""
    torch.manual_seed(0)
    model = GPT(vocabulary, layers, hidden, heads, sequence)
    optimizer = torch.optim.Adam(model.parameters())
    if way == MASTER:
        optimizer = MasterWeights(optimizer, dtype)
    ids, targets = torch.randint(0, vocabulary, (2, batch, sequence))

    def loss():
        with torch.autocast("cpu", dtype=dtype, enabled=way == AUTOCAST):
            return token_loss(model(ids).float(), targets)

    loss().backward()
    optimizer.step()
    optimizer.zero_grad()
    with memory_meter(model, optimizer) as meter:
        error = loss()
        forward = meter.now_by_kind
        error.backward()
        backward = meter.now_by_kind
        optimizer.step()
    readings = (forward, backward, meter.by_kind, meter.peak_by_kind)
    return [{kind: one[kind] for kind in precision.KINDS} for one in readings]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(("way", "dtype"), WAYS)
def test_bytes_by_kind_are_what_the_meter_sees_byte_for_byte(way, dtype, sizes):
    forward, backward, peak, most = measured(way, dtype, *sizes)
    moments = precision.gpt_moments(way, *sizes)
    assert forward == moments["after forward"]
    assert peak == moments["start of backward"]
    assert most["gradients"] == moments["update"]["gradients"]
    assert backward | {"activations": forward["activations"]} == precision.gpt_bytes(way, *sizes)


@pytest.mark.parametrize("sizes", SIZES)
def test_in_fp32_the_terms_are_those_of_the_memory_module(sizes):
    terms = precision.gpt_activation_terms(FP32, *sizes)
    assert terms.pop("cast_weights") == 0
    assert terms == memory.gpt_activation_terms(*sizes)


def test_the_terms_of_one_layer_of_four_numbers_by_hand():
    """h = 4, one head, s = 2, b = 1, V = 3: 2 tokens, 8 numbers of s b h, 6 logits."""
    sizes = (1, 4, 1, 2, 1, 3)
    assert precision.gpt_activation_terms(AUTOCAST, *sizes) == {
        "norms": 2 * 8 * 4 + 4 * 2 * 4,
        "attention": (3 + 3 + 1) * 8 * 2,  # three casts; q, k, v; what the projection reads
        "probabilities": 2 * 2 * 2,
        "feed_forward": (1 + 4 + 4) * 8 * 2,
        "output": 8 * 4 + 8 * 2 + 2 * 2 * 4 + 6 * 4 + 8,
        "cast_weights": 2 * (4 * 16 + 2 * 64 + 3 * 4),
    }
    terms = precision.gpt_activation_terms(MASTER, *sizes)
    assert terms["norms"] == 2 * 8 * 2 + 4 * 2 * 2
    assert terms["attention"] == (1 + 3 + 1) * 8 * 2
    assert terms["output"] == 2 * 8 * 2 + 2 * 2 * 2 + 6 * 4 + 8
    assert terms["cast_weights"] == 0


def test_statistics_of_4_bytes_add_two_for_each_number_of_them():
    sizes = SIZES[0]
    cpu = precision.gpt_activation_terms(MASTER, *sizes)
    gpu = precision.gpt_activation_terms(MASTER, *sizes, statistics_bytes=4)
    apart = {name: gpu[name] - cpu[name] for name in cpu if gpu[name] != cpu[name]}
    tokens = 17 * 5
    assert apart == {"norms": 4 * tokens * 2, "output": 2 * tokens * 2}


@pytest.mark.parametrize("way", PRECISIONS)
def test_all_three_hold_16_bytes_a_parameter_and_master_weights_18_in_their_update(way):
    sizes = SIZES[1]
    count = memory.gpt_parameters(2, 64, 256, 32)
    counters = 4 * sum(1 for _ in GPT(layers=2).parameters())
    states = precision.gpt_bytes(way, *sizes)
    assert sum(states.values()) - states["activations"] - counters == 16 * count
    update = precision.gpt_moments(way, *sizes)["update"]
    assert sum(update.values()) - 4 - counters == (18 if way == MASTER else 16) * count


def test_with_few_tokens_autocast_keeps_more_than_fp32():
    few, many = (2, 64, 4, 8, 1), (2, 64, 4, 64, 16)
    kept = {
        (way, sizes): sum(precision.gpt_activation_terms(way, *sizes).values())
        for way in (FP32, AUTOCAST)
        for sizes in (few, many)
    }
    assert kept[AUTOCAST, few] > kept[FP32, few]
    assert kept[AUTOCAST, many] < 0.75 * kept[FP32, many]


def test_another_precision_is_refused_with_the_three_there_are():
    for function in (precision.gpt_bytes, precision.gpt_moments, precision.gpt_activation_terms):
        with pytest.raises(ValueError, match=r"'fp8': choose one of .*'autocast'"):
            function("fp8", *SIZES[0])


# Speed


@pytest.mark.parametrize("device", DEVICES.values(), ids=list(DEVICES))
def test_an_operation_that_moves_bytes_alone_is_twice_as_fast(device):
    assert precision.speedup(0, 1e9, device) == 2
    adds = 10**9  # two fp32 numbers read and one written for each
    assert precision.speedup(adds, 12 * adds, device) == pytest.approx(2)


@pytest.mark.parametrize(("name", "ratio"), [("V100", 8), ("T4", 8), ("A100", 16)])
def test_a_large_product_is_as_much_faster_as_the_peaks_are_apart(name, ratio):
    device = DEVICES[name]
    speedup = precision.speedup(*precision.matmul_work(8192, 8192, 8192), device)
    assert speedup == pytest.approx(device.tensor_16 / device.fp32)
    assert round(speedup) == ratio


def test_between_both_lies_what_fp32_computes_for_longer_than_16_bits_need_to_fetch():
    a100 = DEVICES["A100"]
    work = precision.matmul_work(128, 128, 128)
    speed = a100.bytes_per_second
    assert precision.bound(*work, a100.fp32, speed) == "flops"
    assert precision.bound(work[0], work[1] / 2, a100.tensor_16, speed) == "bytes"
    by_hand = (work[0] / 19.5e12) / (work[1] / 2 / 1555e9)
    assert precision.speedup(*work, a100) == pytest.approx(by_hand)
    assert 2 < by_hand < 16


def test_a_products_flops_grow_faster_than_its_bytes():
    assert precision.matmul_work(2, 3, 5) == (60, 4 * (2 * 5 + 5 * 3 + 2 * 3))
    sizes = [2**i for i in range(5, 14)]
    speedups = [precision.speedup(*precision.matmul_work(n, n, n), DEVICES["T4"]) for n in sizes]
    assert speedups == sorted(speedups)
    assert speedups[0] == 2


@pytest.mark.parametrize(("flops", "num_bytes"), [(0, 0), (-1, 5), (5, -1)])
def test_no_work_has_no_speedup(flops, num_bytes):
    with pytest.raises(ValueError, match=f"{flops} FLOPs and {num_bytes} bytes"):
        precision.speedup(flops, num_bytes, DEVICES["T4"])
