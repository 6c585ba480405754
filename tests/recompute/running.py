"""Small models that run plainly and under a tape, and deterministic links."""

import copy
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cache

import torch
from torch import nn
from torch.nn import functional

from pedagogy.measure import memory_meter
from pedagogy.ranks.link import Copy, Link
from pedagogy.recompute import ACTIONS, by_rule, predict, profile
from pedagogy.workloads import GPT, MLP, ConvNet, digits_batch, text_batch

SIZES = {"layers": 2, "hidden": 16, "heads": 2, "sequence": 8}
DIGITS, TEXT = digits_batch(6), text_batch(2, 8)


def tied_gpt():
    return GPT(**SIZES)


def untied_gpt_with_dropout():
    return GPT(**SIZES, dropout=0.3, tied=False)


def gpt_with_a_frozen_bottom():
    model = GPT(**{**SIZES, "layers": 3})
    for module in (model.token, model.position, model.blocks[0], model.blocks[1]):
        module.requires_grad_(False)
    return model


def gpt_in_float64():
    return tied_gpt().double()


def mlp():
    return MLP((64, 30, 70, 10))


def convnet():
    return ConvNet(4)


def deep_convnet(layers=6, channels=4):
    """As in the notebooks: the activations outweigh what a convolution's backward has in hand."""
    return Net(
        module
        for i in range(layers)
        for module in (
            nn.Conv2d(channels if i else 1, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
        )
    )


class Net(nn.Module):
    """Convolutions, a mean over pixels, a linear layer."""

    def __init__(self, features, channels=4):
        super().__init__()
        self.features = nn.Sequential(*features)
        self.classifier = nn.Linear(channels, 10)

    def loss(self, images, labels):
        return functional.cross_entropy(self.classifier(self.features(images).mean((2, 3))), labels)


class InPlace(nn.Module):
    """A residual block as many write it: sums and activations in place, dropout too."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(4, 4, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(4), nn.BatchNorm2d(4)])
        self.second = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.relu, self.dropout = nn.ReLU(inplace=True), nn.Dropout(0.3, inplace=True)

    def forward(self, x):
        y = self.relu(self.norms[0](self.first(x)))
        y = self.dropout(self.norms[1](self.second(y)).mul_(2))
        y += x
        return self.relu(y)


def resnet_in_place():
    return Net([nn.Conv2d(1, 4, 3, padding=1), InPlace(), InPlace()])


MODELS = [
    tied_gpt,
    untied_gpt_with_dropout,
    gpt_with_a_frozen_bottom,
    gpt_in_float64,
    mlp,
    convnet,
    resnet_in_place,
]


def made(make):
    """The model, always with the same weights, and its batch."""
    torch.manual_seed(0)
    model = make()
    return model, TEXT if isinstance(model, GPT) else DIGITS


def step(model, batch, around=None, loss=None):
    """Loss, gradients, buffers, and what the stream of random numbers gives next."""
    torch.manual_seed(3)
    with around or nullcontext() as tape:
        value = (loss or model.loss)(*batch)
    value.backward()
    gradients = [p.grad for p in model.parameters()]
    return [value.detach(), *gradients, *model.buffers(), torch.rand(3)], tape


def assert_same(mine, right):
    """To the bit."""
    assert len(mine) == len(right)
    for a, b in zip(mine, right, strict=True):
        assert (a is None and b is None) or torch.equal(a, b)


def at_random(seed):
    """A rule that draws an action for each storage."""
    draw = random.Random(seed)
    return lambda made: draw.choice(ACTIONS)


@cache
def profiled(make):
    """The profile of a model; made once."""
    return profile(*made(make))


def mixture(found, seed, actions=ACTIONS):
    """An action for each saved storage, drawn."""
    draw = random.Random(seed)
    return {key: draw.choice(actions) for key in found.saved}


def always(action):
    """A rule."""
    return lambda made: action


def executed(make, rule, link=None, calls=None, **batch):
    """What a decision costs when it is run: the meter and the tape."""
    model, given = made(make)
    given = batch.get("batch", given)
    torch.manual_seed(3)
    with memory_meter(model) as meter:
        with by_rule(rule, link, calls) as tape:
            loss = model.loss(*given)
        loss.backward()
    return meter, tape


def predicted(profile, action):
    """All saved storages alike."""
    return predict(profile, dict.fromkeys(profile.saved, action))


class AtOnce(Link):
    """A copy is over when it has been asked for: the least that a link can leave on the device."""

    def _start(self, way, source, into, name):
        with ThreadPoolExecutor(1) as engine:  # host memory is what other threads make
            target = engine.submit(self._filled, source, into).result()
        return Copy(lambda: target, lambda: target)

    @staticmethod
    def _filled(source, into):
        into = torch.empty_like(source) if into is None else into
        return into.copy_(source)


class Never(Link):
    """A copy is over when somebody insists on it, and not before: the most that can be left."""

    def _start(self, way, source, into, name):
        def finish():
            raise AssertionError("nobody needs a copy while its source is there")

        return Copy(lambda: source, finish)


def copies_of(model):
    """Two models of the same weights."""
    return model, copy.deepcopy(model)
