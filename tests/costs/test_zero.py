"""ZeRO's closed forms against its printed tables and the cases that people met."""

import math

import pytest

from pedagogy.costs import published
from pedagogy.costs.communication import zero_bytes_sent
from pedagogy.costs.memory import model_state_bytes, zero_bytes

SIZES = {"7.5B": 7.5e9, "128B": 128e9, "1T": 1e12}
STAGES = {"Pos": 1, "Pos+g": 2, "Pos+g+p": 3}


@pytest.mark.parametrize("row", published.table("zero_table1_memory").rows, ids=str)
def test_every_cell_of_table_1_is_rounded_or_cut_off_as_printed(row):
    gigabytes = zero_bytes(SIZES[row["model"]], row["dp_degree"], STAGES[row["stage"]]) / 1e9
    assert gigabytes == pytest.approx(row["exact_GB"], rel=1e-12)
    printed = row["printed_GB"]
    digits = len(str(printed).partition(".")[2])
    half_up = math.floor(gigabytes * 10**digits + 0.5) / 10**digits
    cut_off = math.floor(gigabytes * 10**digits) / 10**digits
    assert printed in (half_up, cut_off)


def test_eight_cells_of_table_1_are_cut_off_not_rounded():
    cut_off = {
        row["printed_GB"]
        for row in published.table("zero_table1_memory").rows
        if row["printed_GB"] >= 100 and row["exact_GB"] - row["printed_GB"] >= 0.5
    }
    assert cut_off == {513, 257, 4187, 2218, 4046, 2054, 4011, 2013}


def test_K02_the_savings_depend_on_the_number_of_ranks():
    at_64 = [zero_bytes(7.5e9, 64, stage) / 1e9 for stage in range(4)]
    assert at_64 == pytest.approx([120, 31.41, 16.64, 1.875], abs=0.005)
    assert [zero_bytes(1e9, 8, stage) / 1e9 for stage in range(4)] == [16, 5.5, 3.75, 2.0]
    assert {zero_bytes(7e9, 1, stage) / 1e9 for stage in range(4)} == {112}
    for ranks, savings in ((8, [2.91, 4.27, 8]), (64, [3.82, 7.21, 64])):
        found = [16 / zero_bytes(1, ranks, stage) for stage in (1, 2, 3)]
        assert found == pytest.approx(savings, abs=0.005)


def test_K01_adam_in_mixed_precision_needs_16_bytes_a_parameter():
    assert zero_bytes(7e9, 1, 0) == model_state_bytes(7 * 10**9) == 112e9
    gibibytes = zero_bytes(7e9, 1, 0) / 2**30
    assert gibibytes == pytest.approx(104.3, abs=0.05)


def test_K03_the_terms_of_stage_2_and_what_an_estimator_left_out():
    assert zero_bytes(1e9, 8, 2) / 1e9 == 3.75
    assert zero_bytes(1e9, 8, 2, optimizer_bytes=16) / 1e9 == 4.25  # fp32 gradients as well
    assert (4 + 16 / 8) == 6.0  # the old estimate: gradients on every rank, and in the shard


def test_stage_3_sends_half_as_much_again_as_data_parallelism():
    sent = [zero_bytes_sent(1e9, 4, stage) for stage in range(4)]
    assert sent == [3e9, 3e9, 3e9, 4.5e9]
    assert zero_bytes_sent(1e9, 1, 3) == 0


@pytest.mark.parametrize("bad", [(1, 1, 4), (1, 0, 1), (-1, 1, 1)])
def test_bad_input_is_named(bad):
    for function in (zero_bytes, zero_bytes_sent):
        with pytest.raises(ValueError, match=r"stage 4|0 ranks|-1 parameters"):
            function(*bad)
