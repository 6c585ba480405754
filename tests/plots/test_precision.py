"""Gradients in a format's range, loss scales, long sums, bits: artists say what the data say."""

import pytest
import torch

from pedagogy.plots.labels import labels_of
from pedagogy.plots.lanes import blocks
from pedagogy.plots.precision import (
    FATES,
    accumulation_error_figure,
    gradient_range_figure,
    percent,
    populated,
    scale_trace_figure,
    skipped_steps,
)
from pedagogy.plots.precision_formats import bit_layout_figure, power_text, short
from pedagogy.plots.precision_runs import precision_memory_figure, removal_figure
from pedagogy.precision import FORMATS, histogram_of

FP16 = FORMATS["fp16"]
# one value each: zero before, becomes zero, two subnormal, two normal, infinite
VALUES = torch.tensor([0.0, 2.0**-30, 2.0**-24, 2.0**-20, 1.0, 1000.0, 2.0**17, 2.0**-25])


def bars(ax, fate):
    """Exponent -> height of the bars of one fate; `blocks` knows widths, the paths heights."""
    found = {}
    for collection in ax.collections:
        if collection.get_gid() == fate:
            for path in collection.get_paths():
                for (x, _), (_, y), *_ in path.vertices.reshape(-1, 5, 2).tolist():
                    found[round(x)] = y
    return found


def lines(ax, gid):
    return [line for line in ax.lines if line.get_gid() == gid]


def test_each_value_is_drawn_at_its_power_of_two_with_what_becomes_of_it():
    figure = gradient_range_figure({"gradients": histogram_of(VALUES)}, 0, FP16)
    (ax,) = figure.axes
    share = 100 / len(VALUES)
    assert bars(ax, "underflow") == pytest.approx({-30: share})
    assert bars(ax, "subnormal") == pytest.approx({-25: share, -24: share, -20: share})
    assert bars(ax, "normal") == pytest.approx({0: share, 9: share})
    assert bars(ax, "overflow") == pytest.approx({17: share})
    assert [line.get_xdata()[0] for line in lines(ax, "end")] == [-25, -14, 16]


def test_a_scale_moves_all_bars_and_the_ends_stay():
    values = VALUES[:-2]
    figure = gradient_range_figure({"gradients": histogram_of(values)}, 6, FP16)
    (ax,) = figure.axes
    assert set(bars(ax, "subnormal")) == {-24, -18}
    assert set(bars(ax, "normal")) == {-14, 6, 15}
    assert not bars(ax, "underflow")
    assert [line.get_xdata()[0] for line in lines(ax, "end")] == [-25, -14, 16]


def test_the_shares_beside_a_panel_and_in_the_finding_are_those_of_the_histogram():
    both = {"weight gradients": histogram_of(VALUES), "others": histogram_of(torch.ones(4))}
    figure = gradient_range_figure(both, 0, FP16)
    texts = [text.get_text() for text in figure.axes[0].texts if text.get_gid() == "share"]
    assert texts[0] == "zero before 12.5%"
    assert [text.rsplit(" ", 1)[1] for text in texts[1:]] == ["12.5%", "37.5%", "25%", "12.5%"]
    assert figure.get_label() == (
        "In fp16, with a loss scale of 2^0: of weight gradients 12.5% become zero, 37.5% "
        "subnormal, 12.5% infinite; of others 0% become zero, 0% subnormal, 0% infinite. "
        "Overflow: some do without any scale."
    )


def test_the_finding_says_up_to_which_scale_nothing_overflows():
    label = gradient_range_figure({"x": histogram_of(torch.tensor([0.3]))}, 3, FP16).get_label()
    assert label.endswith("Overflow: nothing overflows up to a scale of 2^17.")
    for power, infinite in ((17, 0), (18, 1)):
        assert histogram_of(torch.tensor([0.3])).shares(power, FP16)["overflow"] == infinite


def test_fates_differ_by_hatch_too_and_nothing_is_refused():
    assert len({hatch for _, _, hatch in FATES.values()}) == len(FATES)
    with pytest.raises(ValueError, match="no histogram"):
        gradient_range_figure({}, 0, FP16)


def test_zeros_alone_have_no_exponent():
    zeros = histogram_of(torch.zeros(3))
    assert populated([zeros]) == (0, 0)
    figure = gradient_range_figure({"dead": zeros}, 0, FP16)
    assert figure.axes[0].texts[-5].get_text() == "zero before 100%"


def test_skipped_steps_are_those_after_which_the_scale_falls():
    scales = [8, 8, 4, 4, 8, 2]
    assert skipped_steps(scales) == [1, 4]
    figure = scale_trace_figure(torch.tensor(scales), torch.ones(6))
    (marks,) = lines(figure.axes[0], "skipped")
    assert marks.get_xdata().tolist() == [1, 4]
    assert marks.get_ydata().tolist() == [3, 3]
    assert figure.get_label() == (
        "The scale starts at 2^3 and ends at 2^1: halved after 2 of 6 steps, which were skipped, "
        "and doubled after 1."
    )
    told = scale_trace_figure(scales, [1.0] * 6, skipped=[1, 4, 5]).get_label()
    assert "3 of 6 steps" in told
    with pytest.raises(ValueError, match="6 scales and 2 losses"):
        scale_trace_figure(scales, [1.0, 2.0])


def test_errors_are_lines_over_the_lengths_and_an_exact_sum_leaves_a_gap():
    figure = accumulation_error_figure(
        [16, 32, 64], {"fp16": [0.0, 0.01, 0.5], "fp32": [0.0, 0.0, 0.0]}
    )
    (line,) = lines(figure.axes[0], "fp16")
    assert line.get_ydata()[1:].tolist() == [0.01, 0.5]
    assert line.get_ydata()[0] != line.get_ydata()[0]
    assert not lines(figure.axes[0], "fp32")
    assert figure.get_label() == "A sum of 64 terms is off by: fp16 50%, fp32 0%."


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0%"), (0.5, "50%"), (1e-7, "below 0.001%"), (0.12345, "12.3%")]
)
def test_shares_are_written_with_three_figures(share, text):
    assert percent(share) == text


# Bits


def test_a_format_has_as_many_boxes_as_bits():
    formats = list(FORMATS.values())
    ax = bit_layout_figure(formats).axes[0]
    for row, of in enumerate(formats):
        for part, bits in (
            ("sign", 1),
            ("exponent", of.exponent_bits),
            ("mantissa", of.mantissa_bits),
        ):
            assert sum(1 for where, *_ in blocks(ax, part) if where == row) == bits
    assert not labels_of(ax, "sign digits")


def test_range_and_spacing_beside_the_boxes_are_those_that_torch_knows():
    ax = bit_layout_figure(list(FORMATS.values())).axes[0]
    cells = {text.get_gid(): text.get_text() for text in ax.texts if text.get_gid()}
    for name in ("fp32", "fp16", "bf16"):
        info = torch.finfo(FORMATS[name].dtype)
        assert cells[f"{name} largest"] == short(info.max)
        assert cells[f"{name} smallest normal"] == power_text(info.tiny)
        assert cells[f"{name} next after 1"] == f"1 + {power_text(info.eps)}"
    assert cells["fp16 smallest"] == "2^-24"
    with pytest.raises(ValueError, match="no format"):
        bit_layout_figure([])


# Runs


def test_a_removed_technique_hurts_if_all_of_its_runs_end_above_all_of_fp32():
    losses = {
        "fp32": [2.0, 2.1],
        "fp16": [2.05, 2.3],
        "worse": [2.2, 2.3],
        "dead": [2.0, float("nan")],
    }
    figure = removal_figure(losses, {"worse": "31% of updates lost"})
    assert figure.get_label() == (
        "Above all runs of fp32: worse, dead; not above all of them: fp16."
    )
    (ax,) = figure.axes
    (dots,) = lines(ax, "worse")
    assert list(dots.get_xdata()) == [2.2, 2.3]
    assert len(lines(ax, "dead diverged")) == 1
    assert "31% of updates lost" in [text.get_text() for text in ax.texts]
    for wrong in ({"fp16": [1.0]}, {"fp32": [float("inf")]}):
        with pytest.raises(ValueError, match="one must be 'fp32'"):
            removal_figure(wrong)


def test_bars_of_memory_are_compared_with_the_first():
    first = {"parameters": 4, "gradients": 4, "optimizer_state": 8, "activations": 100}
    second = {"parameters": 2, "gradients": 2, "optimizer_state": 12, "activations": 50}
    figure = precision_memory_figure({"fp32": first, "half": second})
    assert figure.get_label() == (
        "fp32 holds 116 bytes; half 66 bytes, 50% of the activations and 100% of all else."
    )
    widths = [p.get_width() for p in figure.axes[0].patches if p.get_gid() == "activations"]
    assert widths == [100, 50]
    with pytest.raises(ValueError, match="bar 'half' holds"):
        precision_memory_figure({"fp32": first, "half": {"parameters": 1}})
