"""Numbers bit by bit, and long sums: the explorers say what is true, over all their controls."""

import pytest
import torch

from pedagogy.plots.lanes import blocks
from pedagogy.precision import FORMATS, dot
from pedagogy.widgets import chapter05_sums as sums
from pedagogy.widgets.chapter05_formats import (
    VALUES,
    moved,
    neighbours,
    number_at,
    number_format_explorer,
    place_of,
    ticks_within,
)
from tests.widgets.driving import assert_every_control_moves, assert_three_trials_draw

EXPLORERS = [number_format_explorer, sums.accumulation_error_explorer]


formats = pytest.mark.parametrize("explorer", [number_format_explorer], indirect=True)
errors = pytest.mark.parametrize("explorer", [sums.accumulation_error_explorer], indirect=True)


def chosen(explorer, label):
    (trial,) = [trial for trial in explorer.try_this if trial.label == label]
    return explorer.set(**trial.values)


@pytest.mark.parametrize("explorer", EXPLORERS, indirect=True)
def test_every_control_can_be_moved_over_its_whole_range(explorer):
    assert_every_control_moves(explorer)
    assert_three_trials_draw(explorer)


# Formats


@pytest.mark.parametrize("name", ["fp16", "bf16", "fp32"])
def test_neighbours_are_those_that_torch_finds(name):
    of = FORMATS[name]
    for value in VALUES.values():
        if abs(value) > of.max:
            continue
        here = torch.tensor(value, dtype=of.dtype)
        below, above = neighbours(value, of)
        up, down = (torch.tensor(end, dtype=of.dtype) for end in (float("inf"), -float("inf")))
        assert above == torch.nextafter(here, up).item()
        assert below == torch.nextafter(here, down).item()


def test_places_and_numbers_are_each_others_inverse_for_all_of_fp16():
    of = FORMATS["fp16"]
    bits = torch.arange(0, 0x7C00, 97, dtype=torch.int16)
    for place, value in zip(bits.tolist(), bits.view(torch.float16).tolist(), strict=True):
        assert number_at(place, of) == value
        assert place_of(value, of) == place
    assert number_at(0x7C00, of) == float("inf")
    assert number_at(-1, of) == -(2.0**-24)
    assert number_at(10_000, FORMATS["fp8 e4m3"]) == 448


def test_steps_double_the_value_or_go_to_the_next_number_and_end_at_zero():
    of = FORMATS["fp16"]
    assert moved(1.0, of, False, 3, 0) == 8
    assert moved(1.0, of, True, 0, 1) == -(1 + 2.0**-10)
    assert moved(2.0**-24, of, False, 0, -5) == 0


def test_a_row_is_drawn_number_by_number_only_where_there_are_few():
    assert ticks_within(1.0, 1 + 2**-8, FORMATS["fp16"]) == [1 + i * 2**-10 for i in range(5)]
    assert ticks_within(1.0, 2.0, FORMATS["fp16"]) is None


@formats
def test_the_boxes_are_those_of_the_format(explorer):
    explorer.set(format="bf16", value="pi")
    ax = explorer.figure.axes[0]
    counts = [len(blocks(ax, part)) for part in ("sign", "exponent", "mantissa")]
    assert counts == [1, 8, 7]


@formats
def test_try_2049_is_rounded_to_2048_and_counts_in_twos(explorer):
    chosen(explorer, "2049 in fp16")
    assert explorer.readout == (
        "In fp16 2048 stands between 2047 and 2050: the nearest is 1 away. 2049 was rounded to "
        "it, 1 off, 0.0488% of it."
    )


@formats
def test_try_65520_becomes_infinite_and_65519_does_not(explorer):
    chosen(explorer, "too large")
    assert explorer.readout == "65520 becomes infinite: the largest number of fp16 is 65,504."
    assert torch.tensor(65520.0).half().isinf()
    assert not torch.tensor(65519.0).half().isinf()


@formats
def test_try_a_third_in_bf16_has_an_eighth_of_fp16s_numbers(explorer):
    chosen(explorer, "1/3 in bf16")
    assert "0.333984375" in explorer.readout
    assert FORMATS["bf16"].epsilon == 8 * FORMATS["fp16"].epsilon


# Long sums


@pytest.mark.parametrize(("terms", "accumulator"), [("positive", "fp16"), ("mixed", "bf16")])
def test_the_sums_of_all_lengths_are_those_of_dot(terms, accumulator):
    to = FORMATS[accumulator].dtype
    found = sums.sums(terms, accumulator, None)
    for length, one in list(zip(sums.LENGTHS, found, strict=True))[:5]:
        values = sums.terms(terms)[:length]
        assert one == dot(values, torch.ones(length), torch.float16, to).item()
    parts = sums.terms(terms)[:256].view(8, 32)
    partial = dot(parts, torch.ones(8, 32), torch.float16, to)
    expected = dot(partial, torch.ones(8), to, to).item()
    assert sums.sums(terms, accumulator, 32)[sums.LENGTHS.index(256)] == expected


@errors
def test_try_ones_stop_where_one_is_half_a_step(explorer):
    for label, total, mantissa in (("ones in fp16", "2,048", 11), ("ones in bf16", "256", 8)):
        chosen(explorer, label)
        assert f"give {total} one after the other, 4,096 in chunks of 32" in explorer.readout
        assert 2**mantissa == int(total.replace(",", ""))


@errors
def test_try_mixed_signs_stay_below_a_thousandth(explorer):
    chosen(explorer, "mixed signs")
    assert max(sums.errors("mixed", "fp16", None)) < 1e-3
    assert max(sums.errors("positive", "fp16", None)) > 1e-3


@errors
def test_the_numbers_beside_the_lines_are_those_at_the_length(explorer):
    explorer.set(length=512, accumulator="bf16", terms="ones", chunk=8)
    texts = {text.get_gid(): text.get_text() for text in explorer.figure.texts}
    assert texts["exact"] == "512"
    assert texts["one after the other"] == "256"
    assert texts["in chunks of 8"] == "512"
    (line,) = [
        line for line in explorer.figure.axes[0].lines if line.get_gid() == "one after the other"
    ]
    assert line.get_ydata()[sums.LENGTHS.index(512)] == 0.5
