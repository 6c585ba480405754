"""Pruned filters, binary weights and soft targets as published."""

from __future__ import annotations

import pytest

from pedagogy.costs import compression, published


def rows_of(name):
    return published.table(name).rows


def test_li2017_vgg16_is_pruned_as_printed_from_the_shapes_of_its_layers():
    rows = rows_of("li2017_table2_vgg16")
    layers = compression.VGG16_CIFAR
    pruned = compression.with_outputs(layers, [row["maps_pruned"] for row in rows])
    for row, layer, small in zip(rows, layers, pruned, strict=True):
        assert (row["layer"], row["maps"], row["hw"] ** 2) == (
            layer.name,
            layer.outputs,
            layer.places,
        )
        assert f"{layer.multiplications:.1e}" == f"{row['flop']:.1e}"
        assert f"{layer.weights:.1e}" == f"{row['params']:.1e}"
        removed = 1 - small.multiplications / layer.multiplications
        assert 100 * removed == row["flop_removed_pct"]
    totals = {
        kind: [sum(getattr(layer, kind) for layer in net) for net in (layers, pruned)]
        for kind in ("multiplications", "weights")
    }
    assert totals == {
        "multiplications": [313_463_808, 206_279_680],
        "weights": [14_977_728, 5_390_176],
    }
    row = rows_of("li2017_table1")[1]
    for kind, column in (("multiplications", "flop_pruned_pct"), ("weights", "params_pruned_pct")):
        before, after = totals[kind]
        assert round(100 * (1 - after / before), 1) == row[column]


def test_li2017_prints_multiplications_and_calls_them_flop():
    full = rows_of("li2017_table1")[0]
    multiplications = sum(layer.multiplications for layer in compression.VGG16_CIFAR)
    assert f"{multiplications:.2e}" == f"{full['flop']:.2e}"


def test_li2017_shares_are_the_rounded_sizes_divided():
    full = None
    for row in rows_of("li2017_table1"):
        if row["flop_pruned_pct"] == "" and row["flop"] != "":
            full = row
        for size, share in (("flop", "flop_pruned_pct"), ("params", "params_pruned_pct")):
            if row[share] != "":
                least, most = (
                    100 * (1 - row[size] * (1 + d) / (full[size] * (1 - d)))
                    for d in (0.005, -0.005)
                )
                assert least <= row[share] <= most, (row["model"], share)


def test_li2017_a_pruned_network_from_new_weights_is_worse_than_one_trained_on():
    errors = {row["model"]: row["error_pct"] for row in rows_of("li2017_table1")}
    scratch = [name for name in errors if name.endswith("scratch")]
    assert len(scratch) == 3
    assert all(errors[name] > errors[name.removesuffix(" scratch")] for name in scratch)


# XNOR-Net and distillation


def test_xnor_net_makes_62_times_fewer_operations():
    assert compression.xnor_speedup(256, 9) == pytest.approx(62.27, abs=0.005)
    assert compression.xnor_speedup(3, 9) < 19  # few channels: the scaling is much of the work
    assert compression.xnor_speedup(10**6, 9) == pytest.approx(64, abs=0.001)


def test_binary_weights_cost_nothing_here_and_binary_inputs_12_points():
    top1 = {row["method"]: row["top1"] for row in rows_of("xnornet_table1")}
    assert top1["BWN"] - top1["AlexNet"] == pytest.approx(0.2)
    assert top1["AlexNet"] - top1["XNOR-Net"] == pytest.approx(12.4)


def test_a_teacher_halves_the_students_errors_and_shows_it_a_digit_that_it_never_saw():
    value = {row["item"]: row["value"] for row in rows_of("hinton2015_numbers")}
    errors = [int(value[name]) for name in value if name.startswith("MNIST")]
    assert errors == [67, 146, 74]
    total, threes = int(value["omit digit 3: total errors"]), 133
    assert threes == int(value["omit digit 3: errors on the 1010 threes"])
    assert total - threes == 73  # of all other digits: as many as with all ten in the data
    assert round(100 * (1 - 14 / 1010), 1) == 98.6
    assert "14 (98.6% of 3s" in value["omit 3 with bias +3.5: total / threes"]
