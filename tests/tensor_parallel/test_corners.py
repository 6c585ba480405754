"""Where a cut model would go wrong without a word: each is refused, or right."""

import sys

import cloudpickle
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pedagogy.ranks import RankError, grid, launch
from pedagogy.tensor_parallel import (
    ParallelBlock,
    ParallelGPT,
    RandomStreams,
    RowParallelLinear,
    SequenceParallelBlock,
    VocabParallelEmbedding,
    gradient_parts,
    padded_vocabulary,
    ring_attention,
    split_sequence,
    vocab_parallel_cross_entropy,
)
from pedagogy.workloads import GPT, Block

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def recompute(group, context_fn):
    torch.manual_seed(0)
    streams = RandomStreams(group, seed=7)
    block = ParallelBlock(group, Block(8, 2, 4, dropout=0.3).double(), streams)
    start = streams.state()
    gradients = []
    for again in (False, True):
        streams.restore(start)
        x = torch.ones(2, 4, 8, dtype=torch.double, requires_grad=True)
        options = {"use_reentrant": False}
        if context_fn:
            options["context_fn"] = streams.contexts
        output = checkpoint(block, x, **options) if again else block(x)
        output.square().sum().backward()
        gradients.append(x.grad)
    return torch.allclose(*gradients)


def test_C28_dropout_survives_recomputation_with_the_streams_contexts():
    assert list(launch(recompute, 2, True)) == [True, True]
    assert list(launch(recompute, 2, False)) == [False, False]  # torch knows its own generators


def masks_on_a_grid(group):
    tp = grid(group, dp=2, tp=2)["tp"]
    streams = RandomStreams(tp, seed=3)
    return [tuple(torch.rand(4, generator=g).tolist()) for g in (streams.shared, streams.own)]


def test_C28_replicas_draw_other_masks_without_being_told_their_number():
    shared, own = zip(*launch(masks_on_a_grid, 4), strict=True)
    assert shared[0] == shared[1] != shared[2] == shared[3]
    assert len(set(own)) == 4


def masks_of_two_layers(group):
    blocks = [ParallelBlock(group, Block(8, 2, 4, dropout=0.5)) for _ in range(2)]
    ones = torch.ones(64)
    return [block.dropout(ones) for block in blocks]


def test_two_layers_built_on_their_own_draw_other_masks_equal_on_all_ranks():
    (a, b), (c, d) = launch(masks_of_two_layers, 2)
    assert not torch.equal(a, b)
    assert torch.equal(a, c)
    assert torch.equal(b, d)


def loss_of(group, sizes, labels, vocabulary):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, sum(sizes), generator=generator)
    shard = logits.split(sizes, -1)[group.rank]
    return vocab_parallel_cross_entropy(group, shard, torch.tensor(labels), vocabulary=vocabulary)


def test_unequal_shards_and_impossible_vocabularies_are_refused():
    with pytest.raises(RankError, match=r"\(3, 4\) float32\n.*\(3, 3\) float32"):
        launch(loss_of, 2, [4, 3], [1, 3, 5], None)
    for vocabulary in (9, 0):
        with pytest.raises(RankError, match=f"a vocabulary of {vocabulary} in 8 rows"):
            launch(loss_of, 2, [4, 4], [1, 3, 5], vocabulary)
    with pytest.raises(ValueError, match="all at least 1"):
        padded_vocabulary(50257, 0)


def half_loss(group):
    generator = torch.Generator().manual_seed(0)
    logits = 8 * torch.randn(64, 16, generator=generator)
    labels = torch.randint(16, (64,), generator=generator)
    low = logits.bfloat16()
    loss = vocab_parallel_cross_entropy(group, low.chunk(2, -1)[group.rank], labels)
    return loss.dtype, (loss - functional.cross_entropy(low.float(), labels)).abs().item()


def test_the_loss_of_16_bit_logits_is_computed_in_float32():
    for dtype, error in launch(half_loss, 2):
        assert dtype == torch.float32
        assert error < 1e-5


def half_ring(group):
    generator = torch.Generator().manual_seed(0)
    whole = [torch.randn(1, 2, 256, 16, generator=generator) for _ in range(3)]
    q, k, v = (4 * whole[0]).bfloat16(), whole[1].bfloat16(), whole[2].bfloat16()
    exact = functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
    torch_own = functional.scaled_dot_product_attention(q, k, v)
    ours = ring_attention(group, *(split_sequence(group, x) for x in (q, k, v)), causal=False)
    errors = [(x.double() - split_sequence(group, exact)).abs().max().item()
              for x in (ours, split_sequence(group, torch_own))]  # fmt: skip
    return errors


def test_ring_attention_in_16_bit_is_as_exact_as_torchs():
    for ours, theirs in launch(half_ring, 2):
        assert ours <= 1.5 * theirs


def twice(group):
    x = torch.randn(1, 1, 2, 4, requires_grad=True)
    (first,) = torch.autograd.grad(
        ring_attention(group, x, x, x).square().sum(), x, create_graph=True
    )
    first.sum().backward()


def test_second_derivatives_are_refused():
    with pytest.raises(RankError, match="differentiate twice"):
        launch(twice, 2)


def mixed_dtypes(group):
    dtype = (torch.float16, torch.bfloat16)[group.rank]
    x = torch.ones(1, 1, 2, 4, dtype=dtype)
    ring_attention(group, x, x, x)


def test_ranks_with_other_dtypes_are_told():
    with pytest.raises(RankError, match=r"float16\n.*bfloat16"):
        launch(mixed_dtypes, 2)


def modes(group):
    whole = GPT(hidden=8, heads=2, sequence=4, dropout=0.5).eval()
    whole.position.weight.requires_grad_(False)
    cut = ParallelGPT(group, whole)
    back = cut.to_gpt()
    return cut.training, cut.blocks[0].dropout.training, back.training, (
        back.position.weight.requires_grad
    )  # fmt: skip


def test_eval_mode_and_frozen_weights_survive_the_cut_and_the_way_back():
    assert launch(modes, 2)[0] == (False, False, False, False)


def without_biases(group):
    whole = Block(8, 2, 4).double()
    for layer in (whole.attention.project, whole.feed_forward.project):
        layer.bias = None
    whole.attention_norm.bias = None
    torch.manual_seed(0)
    for parameter in whole.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(2, 4, 8, dtype=torch.double)
    mine = SequenceParallelBlock(group, whole)(x.chunk(2, 1)[group.rank])
    return torch.allclose(mine, whole(x).chunk(2, 1)[group.rank])


def test_layers_without_biases_can_be_cut_along_the_sequence():
    assert list(launch(without_biases, 2)) == [True, True]


def tied_norm(group):
    table = VocabParallelEmbedding(group, 8, 4)
    plain = nn.Linear(4, 4, bias=False)
    plain.weight = table.weight
    table.weight.grad = torch.ones_like(table.weight)
    (_, cut), (_, whole) = gradient_parts(group, nn.ModuleList([plain, table]))
    return len(cut), len(whole)


def test_a_weight_tied_to_a_plain_layer_counts_once_as_cut():
    assert launch(tied_norm, 2)[0] == (1, 0)


@pytest.mark.parametrize("option", [{"padding_idx": 0}, {"max_norm": 0.5}])
def test_an_embedding_with_habits_that_would_be_lost_is_refused(option):
    embedding = nn.Embedding(8, 4, **option)
    with pytest.raises(RankError, match=f"{next(iter(option))} cannot be cut"):
        launch(_cut_embedding, 2, embedding)


def _cut_embedding(group, embedding):
    VocabParallelEmbedding.from_embedding(group, embedding)


def whole_input(group):
    RowParallelLinear(group, 8, 4)(torch.ones(2, 8))


def test_a_whole_input_to_a_row_parallel_layer_is_named():
    with pytest.raises(RankError, match="an input of 8 features: this rank multiplies 4"):
        launch(whole_input, 2)
