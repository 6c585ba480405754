"""The explorer of activation memory says what is true, over all its controls."""

import pytest

from pedagogy.plots.labels import labels_of
from pedagogy.plots.lanes import blocks
from pedagogy.widgets.chapter03_memory import (
    CARD_BYTES,
    FULL,
    ONE,
    PRESETS,
    SELECTIVE,
    SP,
    TP,
    activation_bars,
    activation_memory_explorer,
)

MEASURED = {"TP": {"predicted": 2e6, "measured": 2.1e6}, "SP": {"predicted": 1e6, "measured": 1e6}}


def with_measured():
    return activation_memory_explorer(MEASURED)


memory = pytest.mark.parametrize("explorer", [activation_memory_explorer], indirect=True)
measured = pytest.mark.parametrize("explorer", [with_measured], indirect=True)
both = pytest.mark.parametrize(
    "explorer", [activation_memory_explorer, with_measured], indirect=True
)


def chosen(explorer, label):
    (values,) = [trial.values for trial in explorer.try_this if trial.label == label]
    return explorer.set(**values)


def totals(values):
    """Technique -> GiB at the explorer's values."""
    sizes = {name: values[name] for name in next(iter(PRESETS.values()))}
    bars = activation_bars(**sizes)
    return {technique: sum(bar.values()) / 2**30 for technique, bar in bars.items()}


def test_K11_the_bars_of_gpt_3_are_the_published_ones():
    found = totals(PRESETS["175B"])
    expected = {ONE: 256.5, TP: 51.75, SP: 32.06, SELECTIVE: 9.56, FULL: 4.5}
    assert found == pytest.approx(expected, rel=1e-3)


@memory
def test_the_bars_add_up_and_the_card_is_marked(explorer):
    explorer.set(technique=ONE)
    ax = explorer.figure.axes[0]
    ends = [end for _, _, end in blocks(ax, "attention scores")]
    assert max(ends) == pytest.approx(totals(explorer.values)[ONE] * 2**30)
    (limit,) = [line for line in ax.lines if line.get_gid() == "limit"]
    assert limit.get_xdata()[0] == CARD_BYTES == 80e9
    written = [text for text, _ in labels_of(ax, "totals")]
    assert written[0] == "275.4 GB = 256.5 GiB"


@memory
def test_a_preset_moves_the_controls_and_a_control_moved_by_hand_is_ones_own(explorer):
    explorer.controls["preset"].value = "530B"
    assert explorer.values["hidden"] == 20480
    assert explorer.values["layers"] == 105
    assert explorer.figure.texts[0].get_text().startswith("530B: activations of 105 layers")
    explorer.controls["layers"].value = 50
    assert explorer.values["preset"] == "own"
    assert explorer.figure.texts[0].get_text().startswith("Activations of 50 layers")
    explorer.controls["layers"].value = 105
    assert explorer.values["preset"] == "530B"


def test_the_presets_are_those_of_the_published_table():
    assert {name: tuple(values.values()) for name, values in PRESETS.items()} == {
        "22B": (48, 6144, 64, 2048, 4, 8),
        "175B": (96, 12288, 96, 2048, 1, 8),
        "530B": (105, 20480, 128, 2048, 1, 8),
        "1T": (128, 25600, 160, 2048, 1, 8),
    }


@memory
def test_try_what_tp_leaves_whole(explorer):
    assert "51.75 GiB" in chosen(explorer, "what TP leaves whole").readout
    found = totals(explorer.values)
    assert found[TP] == pytest.approx(51.75)
    assert found[SP] == pytest.approx(found[ONE] / 8)  # a cut of everything
    assert found[SP] == pytest.approx(32.06, rel=1e-3)
    bars = activation_bars(**{name: explorer.values[name] for name in PRESETS["175B"]})
    whole = ("norm inputs", "inputs of attention and MLP", "dropout masks")
    assert [bars[TP][name] for name in whole] == [bars[ONE][name] for name in whole]
    assert sum(bars[TP][name] for name in whole) == 10 * 2048 * 12288 * 96


@memory
def test_try_no_scores_kept(explorer):
    before = totals(explorer.values)[SP]
    assert "9.562 GiB" in chosen(explorer, "no scores kept").readout
    assert 1 - totals(explorer.values)[SELECTIVE] / before == pytest.approx(0.70, abs=0.005)


@memory
def test_try_four_times_the_sequence_does_not_fit(explorer):
    sizes = {name: explorer.values[name] for name in PRESETS["175B"]}
    before = activation_bars(**sizes)[SP]
    readout = chosen(explorer, "four times the sequence").readout
    assert "does not fit on a card of 80 GB" in readout
    after = activation_bars(**{**sizes, "sequence": 8192})[SP]
    assert after["attention scores"] == 16 * before["attention scores"]
    assert after["norm inputs"] == 4 * before["norm inputs"]


@measured
def test_what_was_measured_stands_beside_its_prediction(explorer):
    lower = explorer.figure.axes[1]
    assert [text for text, _ in labels_of(lower, "names")] == ["TP", "SP"]
    assert [text for text, _ in labels_of(lower, "values")] == [
        "predicted 2 MB",
        "predicted 1 MB",
        "measured 2.1 MB",
        "measured 1 MB",
    ]
    assert [end for _, _, end in blocks(lower, "measured")] == [2.1e6, 1e6]


@both
def test_every_control_can_be_moved_over_its_whole_range(explorer):
    size = tuple(explorer.figure.get_size_inches())
    for name, widget in explorer.controls.items():
        options = getattr(widget, "options", None) or [widget.min, widget.max]
        for option in options if name in ("technique", "preset") else [options[0], options[-1]]:
            explorer.set(**{name: option[1] if isinstance(option, tuple) else option})
            assert explorer.error is None, (name, option)
            assert tuple(explorer.figure.get_size_inches()) == size
