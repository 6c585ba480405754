"""A chain without its channels answers what the full chain answers with those channels at zero."""

import itertools
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import relu

from pedagogy.compression import prune_channels

CHANNELS, SIDE = 6, 8
FOLLOWING = ("conv", "flattened", "averaged")


def chain(following="conv", with_norm=True, bias=True, dtype=torch.float64, **settings):
    """A convolution, perhaps a BatchNorm with a history, and what reads them; images."""
    torch.manual_seed(3)
    conv = nn.Conv2d(3, CHANNELS, 3, bias=bias, **settings)
    images = torch.randn(4, 3, SIDE, SIDE)
    norm = nn.BatchNorm2d(CHANNELS, eps=1e-3) if with_norm else None
    if norm:
        for tensor in (norm.weight, norm.bias, norm.running_mean):
            nn.init.normal_(tensor)
        nn.init.uniform_(norm.running_var, 0.5, 2)
    numbers = conv(images)[0, 0].numel()
    after = {
        "conv": lambda: nn.Conv2d(CHANNELS, 5, 2, bias=bias, stride=2),
        "flattened": lambda: nn.Linear(CHANNELS * numbers, 5, bias=bias),
        "averaged": lambda: nn.Linear(CHANNELS, 5, bias=bias),
    }[following]()
    parts = [part.to(dtype).eval() if part else None for part in (conv, norm, after)]
    return parts, images.to(dtype)


def answer(conv, norm, after, images, removed=()):
    """The chain's output; `removed` channels are zero where the next layer reads them."""
    hidden = relu(conv(images) if norm is None else norm(conv(images)))
    hidden[:, list(removed)] = 0
    if isinstance(after, nn.Linear):
        many = after.in_features > conv.out_channels
        hidden = hidden.flatten(1) if many else hidden.mean((2, 3))
    return after(hidden)


def check_chain(prune, fraction, **settings):
    """The shrunk chain against the full one; the least filters are those that are gone."""
    (conv, norm, after), images = chain(**settings)
    before = [part.state_dict() if part else {} for part in (conv, norm, after)]
    before = [{name: value.clone() for name, value in state.items()} for state in before]
    shrunk = prune(conv, after, fraction, norm)
    sums = [sum(abs(x) for x in filter_.flatten().tolist()) for filter_ in conv.weight]
    removed = sorted(range(CHANNELS), key=lambda i: sums[i])[: round(fraction * CHANNELS)]
    assert shrunk.kept.tolist() == [i for i in range(CHANNELS) if i not in removed]
    assert shrunk.convolution.out_channels == len(shrunk.kept) == len(shrunk.convolution.weight)
    found = answer(shrunk.convolution, shrunk.norm, shrunk.following, images)
    expected = answer(conv, norm, after, images, removed)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    for part, old in zip((conv, norm, after), before, strict=True):
        for name, value in old.items():
            assert torch.equal(part.state_dict()[name], value)


@pytest.mark.parametrize("fraction", [0, 0.3, 0.5, 5 / 6])
@pytest.mark.parametrize(
    ("following", "with_norm", "bias"),
    list(itertools.product(FOLLOWING, (True, False), (True, False))),
)
def test_the_shrunk_chain_is_the_full_one_with_channels_at_zero(
    following, with_norm, bias, fraction
):
    check_chain(prune_channels, fraction, following=following, with_norm=with_norm, bias=bias)


@pytest.mark.parametrize(
    "settings",
    [
        {"padding": 2},
        {"padding": (1, 0), "padding_mode": "circular"},
        {"padding": 1, "padding_mode": "reflect"},
        {"padding": 2, "padding_mode": "replicate"},
        {"padding": "same", "dilation": 2},
        {"stride": (2, 1), "dilation": (1, 2)},
    ],
    ids=str,
)
@pytest.mark.parametrize("following", ["conv", "flattened"])
def test_padding_stride_and_dilation_stay(following, settings):
    check_chain(prune_channels, 0.5, following=following, **settings)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("following", FOLLOWING)
def test_dtype_mode_and_what_is_frozen_stay(following, dtype):
    parts, _ = chain(following, dtype=dtype)
    parts[0].weight.requires_grad_(False)
    parts[2].train()
    conv, norm, after, _ = prune_channels(parts[0], parts[2], 0.5, parts[1])
    for new, old in zip((conv, norm, after), parts, strict=True):
        assert new.training == old.training
        for (name, tensor), was in zip(new.named_parameters(), old.parameters(), strict=True):
            assert tensor.dtype == dtype, name
            assert tensor.requires_grad == was.requires_grad, name
            assert tensor.is_leaf
    assert (norm.num_features, norm.eps) == (3, 1e-3)
    assert norm.running_var.dtype == dtype


def test_two_layers_shrink_one_after_the_other_and_train_on():
    torch.manual_seed(0)
    first, second, last = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3), nn.Linear(8, 10)
    norm = nn.BatchNorm2d(8)
    first, norm, second, _ = prune_channels(first, second, 0.5, norm)
    second, _, last, _ = prune_channels(second, last, 0.5)
    assert (first.weight.shape, second.weight.shape) == ((4, 1, 3, 3), (4, 4, 3, 3))
    assert last.weight.shape == (10, 4)
    output = last(second(norm(first(torch.randn(2, 1, 8, 8)))).mean((2, 3)))
    output.sum().backward()
    for part in (first, norm, second, last):
        assert all(p.grad.shape == p.shape for p in part.parameters())
    assert int(norm.num_batches_tracked) == 1


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("tracked", [True, False])
def test_a_norm_without_weights_or_without_a_history_shrinks_too(affine, tracked):
    norm = nn.BatchNorm2d(6, affine=affine, track_running_stats=tracked)
    shrunk = prune_channels(nn.Conv2d(3, 6, 1), nn.Conv2d(6, 2, 1), 0.5, norm).norm
    assert shrunk(torch.randn(2, 3, 4, 4)).shape == (2, 3, 4, 4)
    assert (shrunk.affine, shrunk.track_running_stats) == (affine, tracked)


def test_what_does_not_fit_is_refused_with_its_numbers():
    conv, after = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3)
    for fraction in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match=f"fraction is {fraction}: must be from 0 to 1"):
            prune_channels(conv, after, fraction)
    with pytest.raises(ValueError, match=r"0\.9 of 4 channels: none would be left"):
        prune_channels(conv, after, 0.9)
    for wrong in (nn.Conv2d(8, 5, 3), nn.Conv2d(3, 5, 3)):
        with pytest.raises(ValueError, match=f"4 channels are .* reads {wrong.in_channels}"):
            prune_channels(conv, wrong, 0.5)
    with pytest.raises(ValueError, match="4 channels are followed by a layer that reads 6"):
        prune_channels(conv, nn.Linear(6, 5), 0.5)
    with pytest.raises(ValueError, match="4 channels are followed by a norm of 5"):
        prune_channels(conv, after, 0.5, nn.BatchNorm2d(5))
    with pytest.raises(ValueError, match="several groups"):
        prune_channels(nn.Conv2d(2, 4, 3, groups=2), after, 0.5)
    with pytest.raises(ValueError, match="several groups"):
        prune_channels(conv, nn.Conv2d(4, 4, 3, groups=4), 0.5)
    with torch.no_grad():
        conv.weight[1, 0, 0, 0] = math.nan
    with pytest.raises(ValueError, match="1 of 108 weights are not finite"):
        prune_channels(conv, after, 0.5)


def test_layers_of_another_kind_are_refused_by_name():
    conv, linear = nn.Conv2d(3, 4, 1), nn.Linear(4, 2)
    with pytest.raises(ValueError, match="type Linear: must be Conv2d"):
        prune_channels(linear, linear, 0.5)
    with pytest.raises(ValueError, match="type ReLU: must be Conv2d or Linear"):
        prune_channels(conv, nn.ReLU(), 0.5)
