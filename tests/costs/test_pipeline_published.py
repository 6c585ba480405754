"""The closed forms of pipelining, against what the papers printed."""

from __future__ import annotations

import math

import pytest

from pedagogy.costs import memory as model
from pedagogy.costs import pipeline as cost
from pedagogy.costs import pipeline_batch as batches
from pedagogy.costs import pipeline_memory as memory
from pedagogy.costs import published

GIB = 2**30


def rows(name: str, /, **wanted: object) -> list[dict]:
    """The rows of a table whose cells are as wanted."""
    found = [
        row
        for row in published.table(name).rows
        if all(row[column] == cell for column, cell in wanted.items())
    ]
    assert found
    return found


def gpipe_sizes(family: str) -> dict[str, tuple[int, float, float, float]]:
    """GPipe's Table 1 by setting: layers, parameters, printed parameter and activation memory."""
    return {
        row["setting"]: (
            row["L"],
            published.quantity(row["params"]),
            float(row["param_mem_printed"].rstrip("GB")),
            float(row["peak_activation_mem_printed"].rstrip("GB")),
        )
        for row in rows("gpipe_table1_maxmodel", family=family)
    }


def test_gpipes_transformers_have_the_formulas_parameters_to_one_unit_of_the_last_digit():
    sizes = gpipe_sizes("Transformer-L")
    assert len(sizes) == 5
    for layers, parameters, _, _ in sizes.values():
        last_digit = 0.1e6 if parameters < 1e9 else 0.1e9
        assert abs(memory.gpipe_transformer_parameters(layers) - parameters) < last_digit


def test_twelve_bytes_a_parameter_in_gib_give_gpipes_memory_to_a_quarter_of_a_percent():
    for setting, (layers, _, printed, _) in gpipe_sizes("Transformer-L").items():
        if setting == "Naive-1":
            continue  # the next test
        exact = memory.gpipe_transformer_parameters(layers)
        gibibytes = memory.GPIPE_BYTES_PER_PARAMETER * exact / GIB
        assert gibibytes == pytest.approx(printed, rel=0.0025)


def test_gpipes_naive_transformer_has_its_two_memory_cells_swapped():
    layers, _, parameter_cell, activation_cell = gpipe_sizes("Transformer-L")["Naive-1"]
    exact = memory.gpipe_transformer_parameters(layers)
    gibibytes = memory.GPIPE_BYTES_PER_PARAMETER * exact / GIB
    assert gibibytes == pytest.approx(activation_cell, abs=0.005)
    assert gibibytes < parameter_cell / 3


def test_twelve_bytes_a_parameter_miss_the_first_and_the_last_amoebanet():
    misses = {
        setting: memory.GPIPE_BYTES_PER_PARAMETER * parameters / 1e9 / printed - 1
        for setting, (_, parameters, printed, _) in gpipe_sizes("AmoebaNet-D").items()
    }
    assert misses.pop("Naive-1") < -0.06
    assert misses.pop("Pipeline-8") < -0.12
    assert max(map(abs, misses.values())) < 0.01  # here GB are 10^9 bytes


def test_the_bound_is_the_one_that_the_table_of_throughputs_was_given():
    for row in rows("gpipe_table2_throughput"):
        bound = batches.gpipe_speedup_bound(row["K"], row["M"])
        assert bound == pytest.approx(row["ideal_bubble_speedup"], abs=5e-4)


def test_only_the_transformers_row_with_32_micro_batches_sits_just_under_its_bound():
    over, close = set(), set()
    for row in rows("gpipe_table2_throughput"):
        share = row["normalized_throughput"] / batches.gpipe_speedup_bound(row["K"], row["M"])
        name = (row["model"].split("-")[0], row["K"], row["M"])
        if share > 1:  # no bound on these: the batch was changed, or something else got faster
            over.add(name)
        elif 0.9 < share < 1:
            close.add(name)
    assert over == {
        ("AmoebaNet", 4, 1),
        ("AmoebaNet", 8, 1),
        ("Transformer", 4, 1),
        ("Transformer", 8, 1),
        ("Transformer", 2, 4),
        ("Transformer", 4, 4),
        ("Transformer", 8, 4),
    }
    assert close == {("Transformer", k, 32) for k in (2, 4, 8)}


def test_almost_linear_is_true_of_the_transformer_and_not_of_amoebanet():
    def gain(model: str) -> float:
        two, _, eight = (
            row["normalized_throughput"]
            for row in rows("gpipe_table2_throughput", model=model, M=32)
        )
        return eight / two

    linear = batches.gpipe_speedup_bound(8, 32) / batches.gpipe_speedup_bound(2, 32)
    assert linear == pytest.approx(4 * 33 / 39)
    assert gain("Transformer-48") == pytest.approx(3.5)
    assert gain("AmoebaNet-D(18,256)") == pytest.approx(2.9, abs=0.05)
    assert gain("AmoebaNet-D(18,256)") < 0.9 * linear < linear < gain("Transformer-48")


def test_without_nvlink_both_models_stay_under_the_bound():
    base = batches.gpipe_speedup_bound(2, 32)
    for row in rows("gpipe_table3_throughput_nonvlink"):
        assert row["M"] == 32
        assert row["normalized_throughput"] <= batches.gpipe_speedup_bound(row["K"], 32) / base


@pytest.mark.parametrize(("schedule", "v"), [("GPipe", 1), ("Interleaved1F1B v=2", 2)])
def test_makespan_and_peaks_are_those_of_torchs_schedules_replayed(schedule, v):
    """Forward 1, input gradient 1, weight gradient 1; a peak of chunks counts 1/v each."""
    ours = "gpipe" if v == 1 else "interleaved"
    for row in rows("pipeline_sim_from_torch_schedules", schedule=schedule):
        p, m = row["p"], row["m"]
        assert cost.makespan(ours, p, m, v, forward=1, backward=2) == row["makespan"]
        assert cost.bubble_ratio(p, m, v) == row["bubble_total"] / row["ideal_3m"]
        cell = row["peak_activations_per_rank"]
        if " x" in cell:  # "16 x4": the same on all four
            cell = ";".join([cell.split(" x")[0]] * p)
        peaks = [cost.in_flight(ours, rank, p, m, v) / v for rank in range(p)]
        assert peaks == [float(peak) for peak in cell.split(";")]


def test_zero_bubbles_table_2_gives_the_same_bubbles_and_memory():
    p, tf, tb, tw, mb, mw = 5, 3.0, 4.0, 1.5, 7.0, 2.0
    table = {row["row"]: (row["col1"], row["col2"]) for row in rows("zerobubble_table1_2", table=2)}
    times = {"forward": tf, "backward": tb + tw, "weight": tw}
    one_f_one_b = cost.makespan("one_f_one_b", p, 8, **times) - 8 * (tf + tb + tw)
    assert table["1F1B"] == ("(p-1)(TF+TB+TW)", "p*MB")
    assert one_f_one_b == pytest.approx((p - 1) * (tf + tb + tw))
    assert cost.in_flight("one_f_one_b", 0, p, 20) * mb == p * mb
    bubble, kept = table["ZB-H1"]
    assert (bubble, kept) == ("(p-1)(TF+TB-TW)", "p*MB (worker i: (p-i+1)MB+(i-1)MW)")
    assert cost.zero_bubble_h1_bubble(p, **times) == pytest.approx((p - 1) * (tf + tb - tw))
    bubble, kept = table["ZB-H2"]
    assert (bubble, kept) == ("(p-1)(TF+TB-2TW)", "(2p-1)*MB (worker i: (2p-2i+1)MB+(2i-2)MW)")
    assert cost.zero_bubble_h2_bubble(p, **times) == pytest.approx((p - 1) * (tf + tb - 2 * tw))
    for i in range(1, p + 1):
        h1 = memory.zero_bubble_h1_activation(i - 1, p, mb, mw)
        h2 = memory.zero_bubble_h2_activation(i - 1, p, mb, mw)
        assert h1 == (p - i + 1) * mb + (i - 1) * mw
        assert h2 == (2 * p - 2 * i + 1) * mb + (2 * i - 2) * mw


def test_the_table_of_formulas_agrees_on_interleaving():
    (row,) = rows("pipeline_formulas", schedule="Interleaved 1F1B (v chunks)")
    assert row["bubble"] == "(p-1)(tf+tb)/v ; (1/v)(p-1)/m"
    assert row["activation_peak"] == "L(1+(p-1)/(p v)) layers on stage 0"
    p, m, v, layers, tf, tb = 4, 12, 3, 24, 1.0, 3.0
    idle = cost.makespan("interleaved", p, m, v, tf, tb) - m * (tf + tb)
    assert idle == pytest.approx((p - 1) * (tf + tb) / v)
    assert cost.bubble_ratio(p, m, v) == pytest.approx((p - 1) / m / v)
    chunks = cost.in_flight("interleaved", 0, p, m, v)
    assert chunks * layers / (p * v) == pytest.approx(layers * (1 + (p - 1) / (p * v)))


def test_2bw_holds_one_more_version_than_a_flush_and_no_more_activations():
    weights, activations, inputs, p, m = 96e6, 40e6, 1e6, 4, 16

    def held(technique: str) -> float:
        return memory.recomputing_stage_bytes(technique, weights, activations, inputs, p, m)

    assert held("pipedream_2bw") == 2 * weights / p + activations / p + p * inputs
    assert held("gpipe") == weights / p + activations / p + m * inputs
    assert held("pipedream_2bw") - held("pipedream_flush") == weights / p
    assert held("gpipe") - held("pipedream_flush") == (m - p) * inputs
    # PipeDream's first stage keeps p versions of its share: the whole model's weights
    assert memory.pipedream_weight_versions(0, p) * weights / p == weights


def test_pipedreams_configurations_use_every_machine_and_end_in_one():
    configs = [(row["config"], row["machines"]) for row in rows("pipedream_arxiv2018_table1")] + [
        (row["config"], math.prod(map(int, row["servers_x_gpus"].split("x"))))
        for row in rows("pipedream_sosp2019_table1")
        if row["config"] != "Straight"
    ]
    for config, machines in configs:
        replicas = [int(part) for part in str(config).split("-")]
        assert sum(replicas) == machines
        assert replicas == sorted(replicas, reverse=True)
        assert len(replicas) == 1 or replicas[-1] == 1  # else plain data parallelism


def test_pipedreams_speed_ups_over_bsp_are_ratios_of_the_printed_ones():
    for row in rows("pipedream_arxiv2018_table1"):
        if "" not in (row["bsp_speedup_vs_1"], row["pipedream_speedup_vs_1"]):
            ratio = row["pipedream_speedup_vs_1"] / row["bsp_speedup_vs_1"]
            assert ratio == pytest.approx(row["pipedream_speedup_over_bsp"], abs=0.01)


def test_ptd_ps_models_have_the_parameters_of_the_formula_and_whole_layers_on_each_stage():
    for row in rows("ptdp_table1"):
        parameters = model.transformer_parameters(row["layers"], row["hidden"], 51200, 2048)
        assert parameters / 1e9 == pytest.approx(row["params_B"], abs=0.05)
        assert row["layers"] % row["pp"] == 0
        replicas = row["gpus"] // (row["tp"] * row["pp"])
        assert row["batch"] % replicas == 0
