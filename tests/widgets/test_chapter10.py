"""The explorers of chapter 10 say what costs and optimizers say, over all their controls."""

import re

import pytest
import torch

from pedagogy.costs.memory import gpt_parameters
from pedagogy.costs.optimizers import OPTIMIZERS, PRESETS, gpt_shapes, state_bytes
from pedagogy.optimizers import SM3, Adafactor
from pedagogy.plots import style
from pedagogy.widgets.chapter10 import held, state_bytes_explorer
from pedagogy.widgets.chapter10_factored import (
    WAYS,
    best_of_rank_one,
    factored_explorer,
    left_out,
    moments,
)
from tests.widgets.driving import assert_every_control_moves, assert_three_trials_draw

STEPS = 6


def records(steps=STEPS):
    """Gradients of two layers whose rows and columns differ in size, and a little noise."""
    generator = torch.Generator().manual_seed(0)
    sizes = {"wide": (4, 9), "tall": (8, 5)}
    rows = {n: torch.rand(a, 1, generator=generator) * 9 + 0.1 for n, (a, _) in sizes.items()}
    return {
        name: [torch.randn(sizes[name], generator=generator) * scale for _ in range(steps)]
        for name, scale in rows.items()
    }


RECORDS = records()


def factored():
    return factored_explorer(RECORDS)


states = pytest.mark.parametrize("explorer", [state_bytes_explorer], indirect=True)
factors = pytest.mark.parametrize("explorer", [factored], indirect=True)


def chosen(explorer, label):
    (trial,) = [trial for trial in explorer.try_this if trial.label == label]
    return explorer.set(**trial.values), trial.outcome


def told(explorer, pattern):
    return float(re.search(pattern, explorer.readout)[1])


@pytest.mark.parametrize("explorer", [state_bytes_explorer, factored], indirect=True)
def test_every_control_can_be_moved_over_its_whole_range(explorer):
    assert_every_control_moves(explorer)
    assert_three_trials_draw(explorer)
    assert explorer.readout.endswith(".")
    assert not re.search(r"\. [A-Z]", explorer.readout)


# --- bytes of state ---------------------------------------------------------------------------


@states
def test_a_preset_moves_the_sizes_and_sizes_moved_by_hand_are_no_preset(explorer):
    assert explorer.values["preset"] == "GPT-2 XL"
    explorer.set(preset="GPT 7.5B")
    assert explorer.values["hidden"] == 4096
    assert explorer.figure.texts[-1].get_text().startswith("A GPT of 7.47 billion parameters")
    explorer.set(layers=2)
    assert explorer.values["preset"] == "own"
    for name, sizes in PRESETS.items():
        explorer.set(preset=name)
        assert {one: explorer.values[one] for one in sizes._fields} == sizes._asdict()


@states
def test_the_readout_is_one_sentence_of_the_closed_forms(explorer):
    explorer.set(preset="GPT-2 small", optimizer="SM3", precision="fp32", device_gb=8)
    sizes = PRESETS["GPT-2 small"]
    parameters = gpt_parameters(*sizes)
    state = state_bytes("SM3", gpt_shapes(*sizes))
    whole = 8 * parameters + state
    assert explorer.readout == (
        f"With SM3 this GPT holds {style.bytes_text(whole)} (Adam: "
        f"{style.bytes_text(16 * parameters)}), {whole / parameters:.2f} bytes a parameter, of "
        f"which {100 * state / whole:.3g}% are optimizer state; in 8 GB fit: "
        "Adam, Adafactor, SM3, SM3 with momentum, Adam8bit."
    )


@states
def test_what_fits_a_device_is_what_is_not_larger(explorer):
    explorer.set(preset="GPT-2 XL", optimizer="Adam", precision="fp32", device_gb=16)
    totals = {n: sum(bar.values()) for n, bar in held(*PRESETS["GPT-2 XL"], "fp32").items()}
    fits = [name for name in OPTIMIZERS if totals[name] <= 16e9]
    assert 0 < len(fits) < len(OPTIMIZERS)
    assert explorer.readout.endswith(f"in 16 GB fit: {', '.join(fits)}.")
    (limit,) = [one for one in explorer.figure.axes[0].lines if one.get_gid() == "limit"]
    assert limit.get_xdata()[0] == 16e9
    for total in explorer.figure.axes[0].texts:  # 15.6 GB stands on the line, and is read
        assert total.get_zorder() > limit.get_zorder()
        assert total.get_path_effects()
    explorer.set(preset="GPT 7.5B", device_gb=24)
    assert explorer.readout.endswith("in 24 GB fit: none.")


@states
def test_try_adam_factored_and_mixed(explorer):
    _, outcome = chosen(explorer, "what Adam costs")
    assert outcome.startswith("16 bytes a parameter, half of them state: four times")
    assert "16.00 bytes a parameter, of which 50% are optimizer state" in explorer.readout
    _, outcome = chosen(explorer, "factored")
    assert outcome.startswith("Adafactor: 8 bytes a parameter")
    assert "8.01 bytes a parameter, of which 0.0782% are" in explorer.readout
    bars = held(*PRESETS["GPT-2 XL"], "fp32")
    assert len({bar["parameters"] + bar["gradients"] for bar in bars.values()}) == 1
    _, outcome = chosen(explorer, "mixed precision")
    assert "8 bytes a parameter again" in outcome
    assert "8.01 bytes a parameter, of which 50% are" in explorer.readout


# --- factored and covered ---------------------------------------------------------------------


def trained(optimizer, name):
    """The optimizer's own state after all recorded steps."""
    parameter = torch.nn.Parameter(torch.ones_like(RECORDS[name][0]))
    made = optimizer([parameter])
    for gradient in RECORDS[name]:
        parameter.grad = gradient.clone()
        made.step()
    return made.state[parameter]


@pytest.mark.parametrize("name", list(RECORDS))
def test_estimates_are_what_the_optimizers_hold(name):
    state = trained(Adafactor, name)
    rows, columns = state["rows"], state["columns"]
    _, estimate = moments(RECORDS[name], "Adafactor")
    torch.testing.assert_close(estimate, torch.outer(rows, columns) / rows.mean())
    for way, variant in (("SM3-I", 1), ("SM3-II", 2)):
        first, second = trained(lambda p, v=variant: SM3(p, 0.1, variant=v), name)["covers"]
        _, bound = moments(RECORDS[name], way)
        if variant == 1:
            torch.testing.assert_close(bound, torch.minimum(first[:, None], second))
        else:
            torch.testing.assert_close(bound.amax(1), first)
            torch.testing.assert_close(bound.amax(0), second)


def test_the_truth_is_the_mean_or_the_sum_of_the_squares():
    squares = torch.stack(RECORDS["wide"]).square()
    for way in ("SM3-I", "SM3-II"):
        torch.testing.assert_close(moments(RECORDS["wide"], way)[0], squares.sum(0))
    mean = squares[0]
    for step, square in enumerate(squares[1:], start=2):
        mean = (1 - step**-0.8) * mean + step**-0.8 * square
    torch.testing.assert_close(moments(RECORDS["wide"], "Adafactor")[0], mean)
    one, _ = moments(RECORDS["wide"][:1], "Adafactor")
    assert torch.equal(one, squares[0])  # the first step's rate is 0


def test_the_error_is_none_for_rank_one_and_never_below_the_best():
    rank_one = [torch.outer(torch.arange(1.0, 4), torch.arange(1.0, 6))]
    assert left_out(*moments(rank_one, "Adafactor")) < 1e-6
    assert best_of_rank_one(rank_one[0]) < 1e-6
    for gradients in RECORDS.values():
        true, estimate = moments(gradients, "Adafactor")
        assert left_out(true, estimate) >= best_of_rank_one(true) - 1e-6


@factors
def test_the_readings_are_those_of_layer_step_and_way(explorer):
    for layer, step, way in (("wide", 2, "Adafactor"), ("tall", STEPS, "SM3-I")):
        explorer.set(layer=layer, step=step, way=way)
        true, estimate = moments(RECORDS[layer][:step], way)
        assert explorer.readout.startswith(f"After step {step} {way} is within a factor of 2 for ")
        expected = 100 * left_out(true, estimate)
        assert told(explorer, r"its error is ([\d.]+)%") == pytest.approx(expected, rel=5e-3)
        near = (estimate / true).log2().abs() <= 1
        share = told(explorer, r"factor of 2 for ([\d.]+)%")
        assert share == pytest.approx(100 * near.float().mean().item(), rel=5e-3)
        n, m = true.shape
        title = explorer.figure.texts[-1].get_text()
        assert title.endswith(f"{way} keeps {n + m} numbers of {n * m}")
    assert list(explorer.controls["way"].options) == WAYS


@factors
def test_try_one_step_all_and_sm3(explorer):
    _, outcome = chosen(explorer, "one step")
    assert explorer.values["step"] == 1
    first = told(explorer, r"its error is ([\d.]+)%")
    assert outcome == f"the error is {first:.3g}% of the norm"
    _, outcome = chosen(explorer, f"all {STEPS} steps")
    last = told(explorer, r"its error is ([\d.]+)%")
    assert outcome == f"the mean of many: {last:.3g}%"
    assert last < first
    _, outcome = chosen(explorer, "SM3's bound")
    assert outcome.startswith("below the true sum for 0 elements, and ")
    true, bound = moments(RECORDS["wide"], "SM3-II")
    assert (bound >= true * (1 - 1e-6)).all()
    assert told(explorer, r"median ([\d.]+) times") == pytest.approx(
        (bound / true).quantile(0.5).item(), rel=0.05
    )


def test_records_are_matrices_of_as_many_steps():
    with pytest.raises(ValueError, match=r"\{'a': 2, 'b': 1\}: 1 or more, and the same"):
        factored_explorer({"a": torch.ones(2, 3, 4), "b": torch.ones(3, 4)})
    with pytest.raises(ValueError, match=r"'a' has gradients of shapes \[\(3,\)\]"):
        factored_explorer({"a": [torch.ones(3)]})
    with pytest.raises(ValueError, match="recorded steps by layer"):
        factored_explorer({})
    alone = factored_explorer({"a": torch.ones(3, 4)})
    assert alone.error is None
    assert alone.values["step"] == 1
    alone.close()
