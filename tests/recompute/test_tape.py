"""The tape: equal to the plain step to the bit, or an error; nothing stays behind."""

import sys

import cloudpickle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from pedagogy.data_parallel import DataParallel
from pedagogy.measure import memory_meter
from pedagogy.ranks import Link, launch
from pedagogy.recompute import ACTIONS, by_rule, checkpoint
from tests.recompute.running import (
    DIGITS,
    MODELS,
    always,
    assert_same,
    at_random,
    convnet,
    copies_of,
    made,
    mlp,
    resnet_in_place,
    step,
    untied_gpt_with_dropout,
)

cloudpickle.register_pickle_by_value(sys.modules[__name__])
AGAIN = ("recompute", "alone")
LINK = Link()


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_every_action_equals_the_plain_step(make, action):
    right, _ = step(*made(make))
    mine, tape = step(*made(make), by_rule(always(action), LINK))
    assert_same(mine, right)
    assert action in {chosen for chosen, _ in tape.saved.values()}
    assert (tape.extra_forwards > 0) == (action in AGAIN)


@settings(max_examples=6, deadline=None)
@given(st.sampled_from(MODELS), st.integers(0, 10**6))
def test_any_mixture_of_actions_equals_the_plain_step(make, seed):
    right, _ = step(*made(make))
    assert_same(step(*made(make), by_rule(at_random(seed), LINK))[0], right)


def test_batch_norm_counts_a_batch_once():
    model, batch = made(convnet)
    step(model, batch, by_rule(always("alone")))
    assert model.features[1].num_batches_tracked == 1


def compare(function, *inputs, action="recompute"):
    """Gradients of function(*inputs), plainly and under a tape."""
    found = []
    for taped in (False, True):
        given = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
        torch.manual_seed(5)
        if taped:
            with by_rule(always(action), LINK) as tape:
                output = function(*given)
        else:
            output = function(*given)
        outputs = output if isinstance(output, tuple) else (output,)
        sum(x.abs().sum() for x in outputs).backward()
        found.append([x.grad for x in given] + [x.detach() for x in outputs])
    assert_same(*found)
    return tape


def x_of(*shape, seed=0):
    torch.manual_seed(seed)
    return torch.randn(*shape, requires_grad=True)


def several_outputs(x):
    values, places = x.exp().topk(3)
    return values.sin(), x.sigmoid(), values.max(1).values.exp(), places * x.exp()[:, :3]


def views(x):
    both = x.sin()
    q, k, v = both.view(4, 2, 3).unbind(1), both.t().exp(), both[1:, ::2].cos()
    return q[0] @ q[1].t(), k * k, v.expand(2, *v.shape).exp(), both.flatten()[3:].exp()


def in_place(x):
    y = x.exp() * 2
    z = y.cos().add_(1)  # written before it is saved
    y2 = y.sin()
    y2 += z
    y2[:, 0].mul_(3)
    return functional.relu(y2, inplace=True).square(), z.tanh()


def with_no_grad(x):
    with torch.no_grad():
        scale = x.exp().mean()
        scale.sqrt_()
    with torch.inference_mode():
        shift = x.sum().item()
    return (x.sin() * scale).exp() + x.cos().detach() * shift * x.exp()


def numbers_of_other_kinds(x):
    z = torch.complex(x.sin(), x.cos())
    turned = z.conj() @ z.t()
    bits = x.exp().view(torch.int32).bitwise_and(7)
    return torch.view_as_real(turned * turned).sin(), x.exp() * bits, turned.imag.exp()


def lists_and_keywords(x):
    parts = torch.cat([x.sin(), x.exp()], dim=1).chunk(3, dim=1)
    out = torch.empty(x.shape[0], 4)
    with torch.no_grad():
        torch.add(parts[0], 1, out=out)
    return torch.stack(list(parts)).exp(), torch.addmm(out, x, x.t(), beta=0.5).exp()


def sparse(x):
    eye = torch.eye(4).to_sparse()
    return torch.sparse.mm(eye, x.exp()).sin()


def random_numbers(x):
    noise = torch.rand_like(x).exp()
    y = functional.rrelu(x * noise, training=True)
    return functional.dropout(y.exp(), 0.5) * noise


def filled_by_others(x):
    y = torch.empty(4, 6)
    y.numpy()[...] = 2
    return (x * y).exp().sin()


def instance_norm(x):
    norm = nn.InstanceNorm1d(4, affine=True, track_running_stats=True)
    return norm(x.sin().expand(2, 4, 6)).exp()


FUNCTIONS = [
    several_outputs,
    views,
    in_place,
    with_no_grad,
    numbers_of_other_kinds,
    lists_and_keywords,
    sparse,
    random_numbers,
    filled_by_others,
    instance_norm,
]


@pytest.mark.parametrize("action", ["recompute", "alone", "swap"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_what_models_do_besides_is_the_same(function, action):
    compare(function, x_of(4, 6), action=action)


def test_query_key_and_value_share_one_storage():
    tape = compare(lambda x: tuple(part.exp().sin() for part in x.sin().chunk(3, 1)), x_of(2, 6))
    assert [op.runs for op in tape.ops if op.name == "exp"] == [1, 1, 1]
    assert tape.ops[0].name == "sin"


def autocast(model, batch):
    def loss(*given):
        with torch.autocast("cpu", torch.bfloat16):
            return model.loss(*given)

    return {"model": model, "batch": batch, "loss": loss}


@pytest.mark.parametrize("make", [untied_gpt_with_dropout, convnet, mlp])
def test_under_autocast_in_forward(make):
    right, _ = step(**autocast(*made(make)))
    for rule in (always("recompute"), at_random(1)):
        assert_same(step(**autocast(*made(make)), around=by_rule(rule, LINK))[0], right)


def test_backward_under_autocast_casts_nothing_again():
    models = copies_of(made(mlp)[0])
    for model, rule in zip(models, (always("keep"), always("recompute")), strict=True):
        with by_rule(rule):
            loss = model.loss(*DIGITS)
        with torch.autocast("cpu", torch.bfloat16):
            loss.backward()
    assert_same(*([p.grad for p in model.parameters()] for model in models))


@pytest.mark.parametrize("action", ACTIONS)
def test_a_graph_that_is_retained_runs_backward_twice(action):
    found = []
    for rule in (always("keep"), always(action)):
        model, batch = made(untied_gpt_with_dropout)
        torch.manual_seed(0)
        with by_rule(rule, LINK) as tape:
            loss = model.loss(*batch)
        loss.backward(retain_graph=True)
        once = tape.extra_forwards
        loss.backward()
        found.append([p.grad for p in model.parameters()])
    assert_same(*found)
    assert tape.extra_forwards <= 2 * once


def test_second_derivatives():
    found = []
    for rule in (always("keep"), always("recompute")):
        x = x_of(4, 6)
        with by_rule(rule):
            y = x.sin().exp().tanh().sum()
        (gradient,) = torch.autograd.grad(y, x, create_graph=True)
        gradient.square().sum().backward()
        found.append([gradient.detach(), x.grad])
    assert_same(*found)


def test_gradients_of_a_part_leave_nothing_behind():
    model, batch = made(mlp)
    with memory_meter(model) as meter:
        before = meter.now
        with by_rule(always("recompute")):
            loss = model.loss(*batch)
        gradients = torch.autograd.grad(loss, [model.layers[4].weight])
        del loss
        assert meter.now == before + gradients[0].nbytes


@pytest.mark.parametrize("action", ACTIONS)
def test_two_forwards_then_two_backwards_accumulate(action):
    found = []
    for rule in (None, always(action)):
        model, (images, labels) = made(resnet_in_place)
        losses = []
        torch.manual_seed(3)
        for half in (slice(3), slice(3, 6)):
            if rule is None:
                losses.append(model.loss(images[half], labels[half]))
            else:
                with by_rule(rule, LINK):
                    losses.append(model.loss(images[half], labels[half]))
        for loss in losses:
            loss.backward()
        found.append([p.grad for p in model.parameters()] + list(model.buffers()))
    assert_same(*found)


def test_one_tape_for_two_forwards_and_a_backward_inside_it():
    found = []
    for rule in (always("keep"), always("recompute")):
        model, batch = made(untied_gpt_with_dropout)
        torch.manual_seed(3)
        with by_rule(rule):
            first, second = model.loss(*batch), model.loss(*batch)
            first.backward()
            second.backward()
        found.append([p.grad for p in model.parameters()])
    assert_same(*found)


def twice(x):
    y = checkpoint(lambda x: x.sin().exp(), x.cos())
    with by_rule(always("recompute")):
        return y.tanh().exp()


def test_it_nests_with_checkpoint_and_with_itself():
    compare(twice, x_of(4, 6))
    compare(lambda x: checkpoint(twice, x.exp()), x_of(4, 6))


def on_a_rank(group, taped):
    model, (images, labels) = made(convnet)
    wrapped = DataParallel(group, model)
    images, labels = images.chunk(group.size)[group.rank], labels.chunk(group.size)[group.rank]
    for _ in range(2):
        with by_rule(always("recompute" if taped else "keep")) as tape:
            logits = wrapped(images).sin()
            total = logits.exp()
            torch.distributed.all_reduce(total, group=group.process_group)  # says not: in place
            loss = functional.cross_entropy(logits * total.cos().detach(), labels)
            loss = loss + total.detach().exp().mul(logits).mean()
        loss.backward()
    return [p.grad for p in model.parameters()], list(model.buffers()), tape.extra_forwards


def test_on_two_ranks_with_a_collective_in_forward():
    plain, taped = launch(on_a_rank, 2, False), launch(on_a_rank, 2, True)
    for (right, buffers, _), (mine, mine_too, extra) in zip(plain, taped, strict=True):
        assert_same([*mine, *mine_too], [*right, *buffers])
        assert extra > 0
