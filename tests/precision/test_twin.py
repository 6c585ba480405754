"""The production twin: autocast and GradScaler, and ours beside them, step by step."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from pedagogy.precision import DynamicLossScaler, MasterWeights
from pedagogy.workloads import GPT, MLP, digits_batch, text_batch

INF, NAN = math.inf, math.nan


class Counted(torch.optim.SGD):
    """SGD that counts its steps."""

    num_steps = 0

    def step(self, closure=None):
        """One more."""
        self.num_steps += 1
        return super().step(closure)


def pair(scaler, gradients, unscale, clip):
    """Two weights, two optimizers, one scaler; what is seen after each update."""
    weights = [nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))]
    optimizers = [Counted([w], lr=0.5, momentum=0.9) for w in weights]
    seen = []
    for both in gradients:
        loss = sum(w * g for w, g in zip(weights, both, strict=True))
        scaler.scale(loss).backward()
        for index, (weight, optimizer) in enumerate(zip(weights, optimizers, strict=True)):
            if unscale[index]:
                scaler.unscale_(optimizer)
                if clip:
                    torch.nn.utils.clip_grad_norm_([weight], 1.5)
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()
        seen.append((scaler.get_scale(), *(o.num_steps for o in optimizers)))
    return seen, torch.stack(weights).detach()


FINITE = [1.0, -3e-5, 0.0, 2.5, 1e-42]
GRADIENTS = st.sampled_from([*FINITE, *FINITE, 3e37, INF, -INF, NAN])  # 3e37 overflows when scaled


@given(
    gradients=st.lists(st.tuples(GRADIENTS, GRADIENTS), min_size=1, max_size=12),
    exponent=st.sampled_from([-3, 0, 16, 125]),
    growth=st.sampled_from([(2.0, 0.5), (4.0, 0.25)]),
    interval=st.integers(1, 3),
    unscale=st.tuples(st.booleans(), st.booleans()),
    clip=st.booleans(),
)
@example([(1.0, 1.0)] * 6, 125, (2.0, 0.5), 1, (False, True), True)  # beyond fp32's largest
@example([(INF, 1.0), (1.0, 1.0), (1.0, NAN)], 16, (2.0, 0.5), 2, (True, False), True)
@settings(max_examples=60, deadline=None)
def test_scale_steps_and_weights_are_gradscalers_at_every_step(
    gradients, exponent, growth, interval, unscale, clip
):
    knobs = {
        "init_scale": 2.0**exponent,
        "growth_factor": growth[0],
        "backoff_factor": growth[1],
        "growth_interval": interval,
    }
    ours, our_weights = pair(DynamicLossScaler(**knobs), gradients, unscale, clip)
    theirs, their_weights = pair(torch.amp.GradScaler("cpu", **knobs), gradients, unscale, clip)
    assert ours == theirs
    torch.testing.assert_close(our_weights, their_weights, rtol=0, atol=0, equal_nan=True)


def test_the_defaults_are_gradscalers():
    ours, theirs = DynamicLossScaler(), torch.amp.GradScaler("cpu")
    assert ours.get_scale() == theirs.get_scale() == 65536
    assert ours.growth_factor == theirs.get_growth_factor()
    assert ours.backoff_factor == theirs.get_backoff_factor()
    assert ours.growth_interval == theirs.get_growth_interval()


NOTHING = (RuntimeError, AssertionError)  # ours, torch's
MISUSES = [
    (["unscale_", "unscale_"], RuntimeError),
    (["step", "unscale_"], RuntimeError),
    (["step", "step"], RuntimeError),
    (["update"], NOTHING),
    (["step", "update", "update"], NOTHING),
]
USES = [["unscale_", "step", "update"] * 2, ["step", "update"] * 3, ["unscale_", "update"] * 2]


@pytest.mark.parametrize("scaler", [DynamicLossScaler, lambda: torch.amp.GradScaler("cpu")])
def test_C32_errors_come_in_the_same_situations_and_in_no_others(scaler):
    def use(calls):
        weight = nn.Parameter(torch.zeros(()))
        optimizer, scaling = torch.optim.SGD([weight], lr=1.0), scaler()
        scaling.scale(weight).backward()
        for call in calls:
            getattr(scaling, call)(*([optimizer] if call != "update" else []))

    for calls in USES:
        use(calls)
    for calls, kind in MISUSES:
        use(calls[:-1])
        with pytest.raises(kind):
            use(calls)


def train(model, optimizer, scaler, batch, autocast, steps=8):
    """Losses, scales and final weights; the 16-bit type is the model's own, or autocast's."""
    dtype = next(model.parameters()).dtype
    seen = []
    for step in range(steps):
        inputs, targets = batch(step)
        inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
        with autocast:
            logits = model(inputs)
        loss = functional.cross_entropy(logits.float().flatten(0, -2), targets.flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        nn.utils.clip_grad_norm_(parameters, 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        seen.append((loss.item(), scaler.get_scale()))
    return seen, [p.detach().clone() for p in parameters]


def gpt():
    """A small GPT, and Adam."""
    torch.manual_seed(0)
    model = GPT(layers=1, hidden=16, heads=2, sequence=16)
    return model, torch.optim.Adam(model.parameters(), 1e-2)


KNOBS = {"init_scale": 2.0**22, "growth_interval": 2}  # some steps are skipped, and it grows


def test_under_autocast_our_scaler_and_gradscaler_train_alike_bit_for_bit():
    ours, theirs = (
        train(
            *gpt(),
            scaler,
            lambda step: text_batch(2, 16, step=step),
            torch.autocast("cpu", torch.float16),
        )
        for scaler in (DynamicLossScaler(**KNOBS), torch.amp.GradScaler("cpu", **KNOBS))
    )
    assert ours[0] == theirs[0]
    assert all(map(torch.equal, ours[1], theirs[1]))
    changes = [after / before for before, after in pairwise(scale for _, scale in ours[0])]
    assert {0.5, 1.0, 2.0} == set(changes)


def test_on_an_mlp_master_weights_and_autocast_are_the_same_scheme_bit_for_bit():
    found = []
    for wrap, automatic, scaler in (
        (lambda o: MasterWeights(o, torch.float16), False, DynamicLossScaler(2.0**10)),
        (lambda o: o, True, torch.amp.GradScaler("cpu", 2.0**10)),
    ):
        torch.manual_seed(0)
        model = MLP((64, 32, 10))
        optimizer = wrap(torch.optim.Adam(model.parameters(), 1e-2))
        cast = torch.autocast("cpu", torch.float16, enabled=automatic)
        found.append(
            train(model, optimizer, scaler, lambda step: digits_batch(32, step=step), cast)
        )
    (ours, our_weights), (theirs, their_weights) = found
    assert ours == theirs
    assert ours[-1][0] < ours[0][0]
    assert all(map(torch.equal, our_weights, their_weights))
