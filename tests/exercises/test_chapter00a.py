"""Chapter 00a's references: against torch's own Adam, the meter, one batch, and typed answers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pedagogy.exercises import chapter00a_entry
from pedagogy.exercises.chapter00a import training_step
from pedagogy.exercises.chapter00a_adam import FIRST_ADAM_STEP, adam_step
from pedagogy.exercises.chapter00a_saved import LINEAR_FLOPS, Gated, saved_bytes
from pedagogy.exercises.chapter00a_states import SECOND_PEAK, states_by_kind
from pedagogy.measure import memory_meter
from pedagogy.workloads import GPT, ConvNet, digits_batch, text_batch

ANSWERS = {  # worked out on paper
    "check_00a_states": 1.5 * 16,
    "check_00a_flops": 6,
    "check_00b_reduce_scatter": 250,
    "check_01_ring": 1.75,
    "check_01_memory": 16,
    "check_02a_bubble": 3 / 15,
    "check_03_columns": 1_049_600,
    "check_05_fp16": 2048,
    "check_08_recompute": 4 / 3,
    "check_11_zero": 7.5 * 4 + 7.5 * 12 / 64,
}


def test_the_entry_check_has_ten_questions_with_the_answers_worked_out_on_paper():
    keys = {one.name: one.key() for one in chapter00a_entry.ENTRY_CHECK}
    assert keys == pytest.approx(ANSWERS)
    assert len(keys) == 10


def test_the_predictions_have_the_answers_worked_out_on_paper():
    assert LINEAR_FLOPS.key() == 6 * 12 * 5
    assert FIRST_ADAM_STEP.key() == pytest.approx(0.001)
    assert SECOND_PEAK.key() == 8 * 437_760 + 4 * 36


def test_the_second_peak_is_higher_by_what_the_prediction_says():
    model = GPT(layers=2, hidden=128, sequence=64)
    optimizer = torch.optim.Adam(model.parameters())
    peaks = []
    for _ in range(2):
        with memory_meter(model, optimizer) as meter:
            training_step(model, optimizer, [text_batch(8, 64)])
        peaks.append(meter.peak)
        optimizer.zero_grad()
    assert peaks[1] - peaks[0] == SECOND_PEAK.key()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("pieces", [1, 2, 3, 6])
def test_micro_batches_give_the_weights_of_one_batch_after_three_steps(pieces, tied):
    ends = []
    for count in (1, pieces):
        torch.manual_seed(0)
        model = GPT(layers=1, hidden=12, heads=3, sequence=7, tied=tied).double()
        model.position.requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
        for step in range(3):
            inputs, targets = text_batch(6, 7, step=step)
            pairs = list(zip(inputs.chunk(count), targets.chunk(count), strict=True))
            training_step(model, optimizer, pairs)
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-10, atol=1e-12)


def test_adam_takes_the_steps_of_torchs_adam():
    torch.manual_seed(0)
    weight = torch.randn(5, 3, dtype=torch.float64)
    theirs = weight.clone().requires_grad_()
    optimizer = torch.optim.Adam([theirs], lr=0.01, betas=(0.8, 0.95), eps=1e-6)
    m, v = torch.zeros_like(weight), torch.zeros_like(weight)
    for step in range(1, 6):
        gradient = torch.randn_like(weight)
        theirs.grad = gradient.clone()
        optimizer.step()
        weight, m, v = adam_step(weight, gradient, m, v, step, 0.01, 0.8, 0.95, 1e-6)
    torch.testing.assert_close(weight, theirs.detach(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_states_by_kind_weighs_what_the_meter_sees(steps):
    model = ConvNet(channels=4)
    optimizer = torch.optim.AdamW(model.parameters())
    with memory_meter(model, optimizer) as meter:
        for step in range(steps):
            training_step(model, optimizer, [digits_batch(4, step=step)])
        seen = meter.now_by_kind
    assert states_by_kind(model, optimizer).items() <= seen.items()


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 4)), (3, 4)),
        (lambda: nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 4)), (5, 4)),
        (lambda: GPT(layers=1, hidden=8, heads=2, sequence=6).blocks[0], (2, 6, 8)),
        (lambda: nn.Conv2d(1, 3, 3), (2, 1, 8, 8)),
    ],
)
def test_what_is_saved_and_the_output_are_what_the_meter_finds_alive(make, shape):
    module, x = make(), torch.ones(*shape)
    with memory_meter(module) as meter:
        output = module(x)
        alive = meter.now_by_kind["activations"]
    assert saved_bytes(module, x) + output.nbytes == alive


def test_a_view_keeps_its_whole_storage():
    elements = 2 * 6 * 4 + 2 * 3 * 4  # what `expand` made, both halves, and the sigmoid
    assert saved_bytes(Gated(4), torch.ones(2, 4)) == 4 * elements
