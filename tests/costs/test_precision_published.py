"""Mixed precision as published: the paper's tables, and the scalers' defaults and trace."""

from __future__ import annotations

import inspect
import re

import pytest
import torch

from pedagogy.costs import published
from pedagogy.precision import DynamicLossScaler

ROWS = published.table("micikevicius_tables").rows
ORACLES = {row["topic"]: row for row in published.table("oracles").rows}
MIXED = "mixed_with_loss_scale_or_mixed"


def percent(cell):
    """A printed cell in percent: "56.77%" is 56.77; table 3 has no sign."""
    return 100 * published.quantity(cell) if "%" in str(cell) else float(cell)


def test_mixed_precision_classifies_as_well_as_fp32_in_all_six_networks():
    gains = [percent(row[MIXED]) - percent(row["fp32"]) for row in ROWS if row["table"] == 1]
    assert len(gains) == 6
    assert min(gains) == pytest.approx(-0.01)
    assert max(gains) == pytest.approx(0.28)


def test_without_a_loss_scale_one_detector_loses_half_a_point_and_the_other_diverges():
    by_name = {row["model"]: row for row in ROWS if row["table"] == 2}
    rcnn, ssd = by_name["Faster R-CNN"], by_name["Multibox SSD"]
    assert percent(rcnn["mixed_without_loss_scale"]) - percent(rcnn["fp32"]) == pytest.approx(-0.5)
    assert ssd["mixed_without_loss_scale"] == "diverges"
    assert all(percent(row[MIXED]) > percent(row["fp32"]) for row in (rcnn, ssd))


def test_both_speech_models_make_fewer_errors_in_mixed_precision():
    rates = [(float(row["fp32"]), float(row[MIXED])) for row in ROWS if row["table"] == 3]
    assert rates == [(2.20, 1.99), (15.82, 15.01)]


def test_the_scalers_defaults_are_the_printed_ones_of_torch():
    text = ORACLES["Loss scaling"]["result_or_caveat"]
    printed = [float(one) for one in re.search(r"defaults ([\d./]+)", text).group(1).split("/")]
    defaults = inspect.signature(DynamicLossScaler).parameters
    names = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
    assert [defaults[name].default for name in names] == printed


def test_the_trace_of_torchs_scaler_is_reproduced_step_by_step():
    text = ORACLES["Loss scaling"]["result_or_caveat"]
    printed = [float(one) for one in re.search(r"step 5: ([\d,]+)", text).group(1).split(",")]
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler, trace = DynamicLossScaler(growth_interval=3), []
    for step in range(1, len(printed) + 1):
        weight.grad = torch.tensor([float("inf") if step == 5 else 1.0])
        scaler.step(optimizer)
        scaler.update()
        trace.append(scaler.get_scale())
    assert trace == printed
