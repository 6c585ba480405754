"""The shard map of chapter 03 says what is true, at every step of every layer."""

import sys

import cloudpickle
import pytest
import torch

from pedagogy.plots.labels import labels_of
from pedagogy.plots.lanes import blocks
from pedagogy.plots.tensor import COLUMNS, PARTS, ROWS, WHOLE
from pedagogy.ranks import launch
from pedagogy.tensor_parallel import (
    ColumnParallelLinear,
    ParallelAttention,
    ParallelBlock,
    ParallelMLP,
    RowParallelLinear,
    SequenceParallelBlock,
    VocabParallelEmbedding,
    vocab_parallel_cross_entropy,
)
from pedagogy.widgets.chapter03 import plan_of, render_shard_map, shard_map_explorer
from pedagogy.widgets.chapter03_layers import PLANS
from pedagogy.widgets.chapter03_plans import SEQUENCE, TENSOR
from pedagogy.workloads import Block

cloudpickle.register_pickle_by_value(sys.modules[__name__])

BOTH = (TENSOR, SEQUENCE)


shards = pytest.mark.parametrize("explorer", [shard_map_explorer], indirect=True)
each_plan = pytest.mark.parametrize(
    "plan", [PLANS[name](split) for name in PLANS for split in BOTH], ids=lambda plan: ""
)


def chosen(explorer, label):
    (values,) = [trial.values for trial in explorer.try_this if trial.label == label]
    return explorer.set(**values)


# Plans


@each_plan
def test_an_exchange_turns_how_a_tensor_lies_into_what_the_collective_leaves(plan):
    meaning = {
        "all_reduce": (PARTS, WHOLE),
        "all_gather": (ROWS, WHOLE),
        "reduce_scatter": (PARTS, ROWS),
    }
    for link in plan.links:
        source, target = plan.tensors[link.source], plan.tensors[link.target]
        ways = [(source.cut, target.cut), (target.gradient, source.gradient)]
        for kind, way in zip(link.exchanges, ways, strict=True):
            if kind:
                assert way == meaning[kind]


@each_plan
def test_what_no_exchange_moves_lies_as_a_rank_can_make_it_alone(plan):
    """A product of whole and columns is columns, of columns and rows a part of a sum."""
    alone = {
        (WHOLE, COLUMNS): COLUMNS,
        (COLUMNS, ROWS): PARTS,
        (WHOLE, ROWS): PARTS,
    }
    for link in plan.links:
        if link.weight is not None:
            cuts = (plan.tensors[link.source].cut, plan.tensors[link.weight].cut)
            assert plan.tensors[link.target].cut == alone[cuts]


@each_plan
def test_a_gradient_of_a_weight_is_cut_as_the_weight(plan):
    assert all(one.gradient == one.cut for one in plan.tensors if one.weight)


@pytest.mark.parametrize("layer", PLANS)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_sequence_parallelism_sends_the_same_bytes(layer, ranks):
    tensor, sequence = (plan_of(layer, split) for split in BOTH)
    # an all_reduce is a reduce_scatter and an all_gather
    assert sequence.sent_bytes(sequence.last, ranks) == tensor.sent_bytes(tensor.last, ranks) > 0


def test_a_layer_takes_four_all_reduces_or_four_gathers_and_four_scatters():
    tensor, sequence = (plan_of("whole layer", split) for split in BOTH)
    kinds = ("all_reduce", "all_gather", "reduce_scatter")
    assert [tensor.count(kind) for kind in kinds] == [4, 0, 0]
    assert [sequence.count(kind) for kind in kinds] == [0, 4, 4]


def exchanged(group):
    """(layer, split) -> what the real layer exchanges in its forward, then in its backward."""
    torch.manual_seed(0)
    whole = torch.randn(2, 8, 16, requires_grad=True)
    some = torch.randn(2, 8 // group.size, 16, requires_grad=True)
    cut = torch.randn(2, 8, 16 // group.size, requires_grad=True)
    ids, block = torch.randint(32, (2, 8)), Block(16, 4, 8)
    table = VocabParallelEmbedding(group, 32, 16)
    head = ColumnParallelLinear(group, 16, 32, bias=False)
    calls = {
        ("linear by columns", TENSOR): (ColumnParallelLinear(group, 16, 64), whole),
        ("linear by rows", TENSOR): (RowParallelLinear(group, 16, 64), cut),
        ("MLP", TENSOR): (ParallelMLP(group, 16), whole),
        ("attention", TENSOR): (ParallelAttention(group, 16, 4, 8), whole),
        ("embedding", TENSOR): (table, ids),
        ("loss", TENSOR): (lambda x: vocab_parallel_cross_entropy(group, head(x), ids), whole),
        ("whole layer", TENSOR): (ParallelBlock(group, block), whole),
        ("whole layer", SEQUENCE): (SequenceParallelBlock(group, block), some),
    }
    kinds = {}
    for name, (layer, x) in calls.items():
        before = len(group.events)
        output = layer(x)
        between = len(group.events)
        output.sum().backward()
        ways = group.events[before:between], group.events[between:]
        kinds[name] = [[event.kind for event in way] for way in ways]
    return kinds


def test_the_plans_exchange_what_the_real_layers_do():
    (found, _) = launch(exchanged, 2)
    for (layer, split), kinds in found.items():
        plan = plan_of(layer, split)
        ways = [
            [kind for link in plan.links for kind in [link.exchanges[0]] * link.count if kind],
            [link.exchanges[1] for link in reversed(plan.links) if link.exchanges[1]],
        ]
        assert kinds == ways, layer


# The shard map


@pytest.mark.parametrize("layer", PLANS)
def test_every_step_of_every_layer_has_a_picture_and_a_sentence(layer):
    for split in BOTH:
        last = plan_of(layer, split).last
        figures = [
            render_shard_map(layer, split, (2, 4, 8)[step % 3], step) for step in range(last + 1)
        ]
        assert {tuple(figure.get_size_inches()) for figure in figures} == {(10.0, 5.4)}
        for step, figure in enumerate(figures[1:], start=1):
            way = "backward" if step > last / 2 else "forward"
            assert figure.get_label().startswith(f"Step {step} of {last}, {way}: ")


@shards
def test_every_choice_is_drawn_at_one_size(explorer):
    for name in ("layer", "split", "ranks"):
        for option in explorer.controls[name].options:
            explorer.set(**{name: option[1] if isinstance(option, tuple) else option, "step": 99})
            assert explorer.error is None, (name, option)
            assert tuple(explorer.figure.get_size_inches()) == (10.0, 5.4)


@shards
def test_a_shorter_layer_has_fewer_steps(explorer):
    explorer.set(layer="whole layer", step=16)
    explorer.set(layer="linear by rows")
    assert explorer.values["step"] == 4


@shards
def test_the_figure_shows_what_exists_after_a_step_and_outlines_the_rest(explorer):
    explorer.set(layer="MLP", split=TENSOR, ranks=4, step=0)
    ax = explorer.figure.axes[0]
    assert len(blocks(ax, "later")) == 4 + 7  # of 7 tensors X, A and B exist, and no gradient
    explorer.set(step=8)
    ax = explorer.figure.axes[0]
    assert not blocks(ax, "later")
    assert len(blocks(ax, "made")) == 1  # the gradient of X


@shards
def test_an_exchange_is_named_with_its_bytes(explorer):
    explorer.set(layer="MLP", split=TENSOR, ranks=4, step=4)
    # 2 (4 - 1) / 4 of 2048 x 12288 numbers of 2 bytes
    ((text, _),) = labels_of(explorer.figure.axes[0], "exchange")
    assert text == "all_reduce: 75.5 MB"
    assert pytest.approx(75.5e6, rel=1e-3) == 2 * 3 / 4 * 2048 * 12288 * 2
    explorer.set(step=3)
    assert not labels_of(explorer.figure.axes[0], "exchange")


@shards
def test_the_shapes_written_on_an_mlp_are_those_of_its_pieces(explorer):
    explorer.set(layer="MLP", split=SEQUENCE, ranks=8, step=0)
    notes = [text for text, _ in labels_of(explorer.figure.axes[0], "notes")]
    assert "each 256 x 12288" in notes  # X, along the sequence
    assert "each 12288 x 6144" in notes  # A, by columns
    assert "each 6144 x 12288" in notes  # B, by rows


@shards
def test_try_columns_then_rows_takes_one_all_reduce_each_way(explorer):
    values = chosen(explorer, "columns, then rows").values
    plan = plan_of(values["layer"], values["split"])
    exchanges = [link.exchanges for link in plan.links]
    assert sum(forward == "all_reduce" for forward, _ in exchanges) == 1
    assert sum(backward == "all_reduce" for _, backward in exchanges) == 1
    texts = [text.get_text() for text in explorer.figure.texts]
    assert "sent by each rank: 151 MB of 151 MB" in texts


@shards
def test_try_along_the_sequence_sends_the_same_302_mb(explorer):
    values = chosen(explorer, "along the sequence").values
    texts = [text.get_text() for text in explorer.figure.texts]
    assert "sent by each rank: 302 MB of 302 MB" in texts
    explorer.set(split=TENSOR)
    texts = [text.get_text() for text in explorer.figure.texts]
    assert "sent by each rank: 302 MB of 302 MB" in texts
    assert plan_of("whole layer", values["split"]).count("all_gather") == 4


@shards
def test_try_three_numbers_are_far_fewer_than_the_logits(explorer):
    assert chosen(explorer, "three numbers").readout.endswith("Each rank sends 43 kB.")
    # 3 all_reduces of 2048 fp32 numbers; an all_gather of 2048 x 51200 numbers in 16 bit
    assert pytest.approx(43e3, rel=1e-3) == 3 * 2 * 7 / 8 * 2048 * 4
    assert pytest.approx(184e6, rel=3e-3) == 7 / 8 * 2048 * 51200 * 2
