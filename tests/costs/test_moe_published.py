"""The closed forms of a mixture, against what the papers printed, with the differences."""

from __future__ import annotations

import math

import pytest

from pedagogy.costs import moe, published

SWITCH = {row["model"]: row for row in published.table("switch_table9_models").rows}
GSHARD = published.table("gshard_table1_configs").rows


def billions(name: str, num_experts: int | None = None) -> float:
    """Parameters of a row of Switch's table 9, with its number of experts or another."""
    row = SWITCH[name]
    experts = num_experts or row["experts"] or 1
    every = {"": 2, "1/2": 2, 1: 1}[row["expert_freq"]]
    shape = (row["layers"], row["d_model"], row["d_ff"], row["heads"], row["d_kv"])
    return moe.t5_parameters(*shape, experts, every, matrices=3 if row["geglu"] else 2) / 1e9


@pytest.mark.parametrize("name", ["T5-Base", "T5-Large", "T5-XXL", "Switch-Base", "Switch-C"])
def test_five_of_switchs_seven_models_are_the_printed_size_cut_off_at_its_last_digit(name):
    printed = published.quantity(SWITCH[name]["params"]) / 1e9
    digit = 0.1 if printed < 1 else 1.0
    assert math.floor(billions(name) / digit) * digit == pytest.approx(printed)


def test_switch_large_is_printed_as_the_size_of_its_experts_alone():
    experts = 24 * 128 * moe.expert_parameters(1024, 2816, matrices=3) / 1e9
    assert SWITCH["Switch-Large"]["params"] == "26B"
    assert math.floor(experts) == 26
    assert math.floor(billions("Switch-Large")) == 27


def test_switch_xxl_has_the_printed_size_with_128_experts_and_half_of_it_with_the_printed_64():
    row = SWITCH["Switch-XXL"]
    assert (row["params"], row["experts"]) == ("395B", 64)
    assert billions("Switch-XXL") == pytest.approx(201.4, abs=0.05)
    assert billions("Switch-XXL", num_experts=128) == pytest.approx(394.7, abs=0.05)


def test_nearly_all_of_switch_c_are_experts():
    experts = 15 * 2 * 2048 * moe.expert_parameters(2080, 6144)
    assert experts == 15 * 2 * 2048 * 2 * 2080 * 6144
    assert experts / 1e9 == pytest.approx(1570.3, abs=0.05)
    assert experts / 1e9 / billions("Switch-C") > 0.999


def test_switch_models_have_their_dense_models_flops_and_thirty_times_the_parameters():
    for size in ("Base", "Large", "XXL"):
        t5, switch = SWITCH[f"T5-{size}"], SWITCH[f"Switch-{size}"]
        assert t5["flops_per_seq"] == switch["flops_per_seq"]
        assert billions(f"Switch-{size}", num_experts=128) > 30 * billions(f"T5-{size}")


def test_gshards_experts_are_half_of_the_layers_times_the_experts_of_a_layer():
    wrong = {}
    for row in GSHARD:
        total = row["experts_per_layer"] * row["layers"] // 2
        assert total == row["experts_total_computed"]
        if total != row["experts_total_printed"]:
            wrong[row["model"]] = (row["experts_total_printed"], total)
    assert wrong == {"MoE(2048E,36L)": (36_684, 36_864), "MoE(2048E,12L)": (12_228, 12_288)}


def test_gshards_experts_alone_are_3_to_5_percent_more_than_all_weights_that_it_prints():
    """Model dimension 1024 and feed-forward 8192: appendix A.2."""
    for row in GSHARD:
        experts = row["experts_total_computed"] * moe.expert_parameters(1024, 8192)
        share = experts / published.quantity(row["weights"])
        expected = 1.045 if row["model"] == "MoE(128E,36L)" else 1.031
        assert share == pytest.approx(expected, abs=5e-4)


def test_gshards_days_and_core_years_follow_from_its_steps_a_second():
    """10^12 tokens each. All but three cells are the printed ones, rounded."""
    differ = {}
    for row in published.table("gshard_table3_training").rows:
        if row["steps_per_s"] == "":
            continue  # the dense model, whose speed is not printed
        seconds = 1e12 / (row["steps_per_s"] * published.quantity(row["batch_tokens"]))
        days = seconds / 86_400
        core_years = row["cores"] * days / 365
        for column, value in (("days", days), ("core_years", core_years)):
            if f"{value:.1f}" != f"{row[column]:.1f}":
                differ[row["model"], column] = (row[column], round(value, 2))
    assert differ == {
        ("MoE(2048E,36L)", "core_years"): (22.4, 22.55),
        ("MoE(2048E,12L)", "days"): (1.4, 1.35),
        ("MoE(2048E,12L)", "core_years"): (7.5, 7.55),
    }


def test_at_each_capacity_factor_top_1_runs_faster_than_top_2_and_less_capacity_runs_faster():
    speed = {
        (row["model"], row["capacity_factor"]): row["examples_per_s"]
        for row in published.table("switch_table1").rows
    }
    for factor in (2.0, 1.25, 1.0):
        assert speed["Switch-Base", factor] > speed["MoE-Base", factor]
    by_capacity = [speed["Switch-Base", factor] for factor in (2.0, 1.25, 1.0)]
    assert by_capacity == sorted(by_capacity)
    assert by_capacity[-1] < speed["T5-Base", ""]  # the same FLOPs, and yet slower


def test_top_1_reaches_the_threshold_sooner_except_with_the_most_capacity():
    hours = {
        (row["model"], row["capacity_factor"]): row["hours_to_threshold"]
        for row in published.table("switch_table1").rows
    }
    saved = {f: hours["MoE-Base", f] - hours["Switch-Base", f] for f in (2.0, 1.25, 1.0)}
    assert saved[2.0] < 0 < min(saved[1.25], saved[1.0])
    assert hours["T5-Base", ""] == "not achieved"


def test_a_router_in_float32_keeps_the_quality_at_the_speed_of_bfloat16():
    quality, speed = {}, {}
    for row in published.table("switch_table2_3").rows[:3]:
        kind = row["model"].removeprefix("Switch-Base ")
        quality[kind], speed[kind] = row["quality"], row["speed_or_std"]
    assert (
        speed["selective"] == speed["bfloat16"] == pytest.approx(1.2 * speed["float32"], rel=0.01)
    )
    assert abs(quality["selective"] - quality["float32"]) < 0.01
    assert quality["bfloat16"] < quality["float32"] - 2  # it diverged


def test_either_of_shazeers_losses_balances_and_both_do_it_best():
    rows = published.table("shazeer2017_table6_losses").rows
    fullest = {(row["w_importance"], row["w_load"]): row["max_over_mean_load"] for row in rows}
    perplexity = {(row["w_importance"], row["w_load"]): row["test_ppl"] for row in rows}
    assert fullest.pop((0.0, 0.0)) == 17.8
    assert max(fullest.values()) < 1.5
    assert min(fullest, key=fullest.get) == (1.0, 1.0)
    assert perplexity.pop((0.0, 0.0)) > 4 + max(perplexity.values())


def test_shazeers_expert_has_a_million_parameters():
    assert moe.expert_parameters(512, 1024) == 2**20
