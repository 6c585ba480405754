"""The explorers of chapter 00 say what is true, over all their controls."""

import pytest

from pedagogy.costs.memory import gpt_parameters, model_state_bytes
from pedagogy.plots.lanes import blocks
from pedagogy.widgets import chapter00
from pedagogy.widgets.chapter00 import VOCABULARY, memory_anatomy
from pedagogy.widgets.collective_states import COLLECTIVES, states_of

MEDIUM = {"layers": 24, "hidden": 1024, "sequence": 1024, "batch": 8}


@pytest.fixture
def anatomy():
    made = chapter00.memory_anatomy_explorer()
    yield made
    made.close()


@pytest.fixture
def collectives():
    made = chapter00.collectives_explorer()
    yield made
    made.close()


def held_by(explorer):
    return memory_anatomy(**explorer.values)


def chosen(explorer, label):
    (values,) = [trial.values for trial in explorer.try_this if trial.label == label]
    return explorer.set(**values)


def test_the_bars_are_as_long_as_the_bytes(anatomy):
    widths = {patch.get_gid(): patch.get_width() for patch in anatomy.figure.axes[0].patches}
    assert widths == held_by(anatomy)
    texts = [text.get_text() for text in anatomy.figure.axes[0].texts]
    assert texts[0] == "710 MB  (2 bytes a parameter)"


def test_while_activations_are_there_the_gradients_are_not(anatomy):
    held = held_by(anatomy)
    states = sum(size for kind, size in held.items() if kind != "activations")
    parameters = gpt_parameters(24, 1024, VOCABULARY, 1024)
    assert states == model_state_bytes(parameters) - 2 * parameters
    texts = [text.get_text() for text in anatomy.figure.axes[0].texts]
    assert "0 bytes  (none yet: the peak is at the start of backward)" in texts


def test_where_gradients_are_more_than_activations_the_peak_is_at_the_update(anatomy):
    anatomy.set(layers=24, hidden=4096, sequence=128, batch=1)
    held = held_by(anatomy)
    parameters = gpt_parameters(24, 4096, VOCABULARY, 128)
    assert sum(held.values()) == model_state_bytes(parameters) == 16 * parameters
    texts = [text.get_text() for text in anatomy.figure.axes[0].texts]
    assert "0 bytes  (all freed: the peak is at the update)" in texts


def test_the_activations_are_of_the_size_that_the_literature_gives(anatomy):
    """Korthikanti et al. 2022: s b h L (34 + 5 a s / h), of which dropout's masks are not ours."""
    s, b, h, layers, heads = 1024, 8, 1024, 24, 16
    published = s * b * h * layers * (34 + 5 * heads * s / h)
    masks = s * b * h * layers * (2 + 3 * heads * s / h)
    logits = 3 * 2 * s * b * VOCABULARY  # log-probabilities and, in backward, two gradients
    assert held_by(anatomy)["activations"] == pytest.approx(published - masks + logits, rel=0.01)


def test_N12_every_control_can_be_moved_over_its_whole_range(anatomy):
    for name, widget in anatomy.controls.items():
        ends = (
            [widget.min, widget.max]
            if hasattr(widget, "min")
            else [option[1] if isinstance(option, tuple) else option for option in widget.options]
        )
        for value in ends:
            anatomy.set(**{name: value})
            assert anatomy.error is None, (name, value)
            assert tuple(anatomy.figure.get_size_inches()) == (10.0, 3.3)


def test_the_smallest_card_is_named(anatomy):
    assert "the smallest card that holds it is the A100" in anatomy.readout
    anatomy.set(layers=1, hidden=256, batch=1)
    assert "the smallest card that holds it is the T4" in anatomy.readout
    anatomy.set(layers=96, hidden=12288, batch=1)
    assert "no single card holds it" in anatomy.readout


def test_try_gpt2_xl_parameters_and_optimizer_state_alone_are_more_than_a_T4_holds(anatomy):
    held = held_by(chosen(anatomy, "GPT-2 XL, batch 1"))
    parameters = gpt_parameters(48, 1600, VOCABULARY, 1024)
    alone = held["parameters"] + held["optimizer_state"]
    assert alone == 14 * parameters > chapter00.CARDS["T4"]


def test_try_twice_the_batch_activations_double_and_nothing_else_moves(anatomy):
    before = held_by(anatomy)
    after = held_by(chosen(anatomy, "twice the batch"))
    assert after.pop("activations") == pytest.approx(2 * before.pop("activations"), rel=1e-6)
    assert after == before


def test_try_sgd_the_optimizer_state_falls_from_12_to_4_bytes(anatomy):
    parameters = gpt_parameters(24, 1024, VOCABULARY, 1024)
    assert held_by(anatomy)["optimizer_state"] == 12 * parameters
    assert held_by(chosen(anatomy, "SGD instead of Adam"))["optimizer_state"] == 4 * parameters


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_N09_every_step_of_every_collective_is_drawn_at_one_size(collectives, collective):
    for ranks in (2, 3, 8):
        for step in range(chapter00.last_step(collective, ranks) + 1):
            collectives.set(collective=collective, ranks=ranks, step=step)
            assert collectives.error is None
            assert collectives.values["step"] == step
            assert tuple(collectives.figure.get_size_inches()) == (10.0, 4.6)


def test_the_maps_show_the_state_before_and_after_the_step(collectives):
    collectives.set(collective="all_reduce", ranks=4, step=2)
    states = states_of(COLLECTIVES["all_reduce"](4))
    for ax, state in zip(collectives.figure.axes[:2], states[1:3], strict=True):
        assert len(blocks(ax, "slots")) == sum(len(cell) for row in state for cell in row)
    arrows = [p for p in collectives.figure.axes[0].patches if p.get_gid() == "move"]
    assert len(arrows) == 4


def test_try_half_an_all_reduce_is_a_reduce_scatter(collectives):
    assert chosen(collectives, "half an all_reduce").values["step"] == 3
    state = states_of(COLLECTIVES["all_reduce"](4))[3]
    assert [sum(len(cell) == 4 for cell in row) for row in state] == [1, 1, 1, 1]
    assert "step 3 of 6: each rank has sent 0.75 times" in collectives.readout


def test_try_a_broadcast_to_8_rank_0_sends_three_times(collectives):
    chosen(collectives, "a broadcast to 8")
    assert "step 3 of 3: each rank has sent 0 to 3 times the tensor" in collectives.readout


def test_try_all_to_all_each_rank_sends_three_quarters(collectives):
    chosen(collectives, "all_to_all on 4")
    assert "step 4 of 4: each rank has sent 0.75 times the tensor" in collectives.readout
    assert all(
        len(cell) == 1 for row in states_of(COLLECTIVES["all_to_all"](4))[-1] for cell in row
    )
