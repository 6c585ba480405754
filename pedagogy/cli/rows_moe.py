"""Row of `pedagogy bench` for chapter 04: our `MoELayer` against a loop over the experts.

The loop is what a mixture usually looks like at first: each expert selects its tokens by a mask,
runs on them, and adds its weighted outputs to a result. It searches all choices once for each
expert, and in backward each selection fills a gradient of *all* tokens with its few rows, so that
its cost grows with the experts although their tokens do not. `dispatch` sorts once instead. Both
sides run the same experts on the same rows, at the same router, with SGD.

There are many experts of few tokens each, as in Shazeer's models. With few and large ones the
products take nearly all of the time, and both sides are equally fast. Each rank trains a layer of
its own and sends nothing: ranks share the cores, so that none spends its time waking threads for
products this small.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from pedagogy.cli.bench import Row, Step

TOKENS, HIDDEN, NUM_EXPERTS, TOP = 1024, 64, 256, 4  # 16 tokens an expert


def _layer() -> Any:
    import torch

    from pedagogy.moe import MoELayer, top_k

    torch.manual_seed(0)
    return MoELayer(HIDDEN, NUM_EXPERTS, partial(top_k, k=TOP))


def _our_step(group: Any) -> Step:
    layer = _layer().to(group.device)
    return _training_step(group, layer, layer)


def _looped_step(group: Any) -> Step:
    layer = _layer().to(group.device)
    return _training_step(group, layer, partial(_loop, layer))


def _loop(layer: Any, tokens: Any) -> Any:
    """The layer's outputs, expert by expert. **Shapes** (tokens, hidden) -> the same."""
    import torch

    routing = layer.router(tokens)
    result = torch.zeros_like(tokens)
    for number, expert in enumerate(layer.experts):
        token, choice = (routing.experts == number).nonzero(as_tuple=True)
        weight = routing.weights[token, choice].unsqueeze(-1)
        result.index_add_(0, token, expert(tokens[token]) * weight)
    return result


def _training_step(group: Any, layer: Any, forward: Any) -> Step:
    """Forward, backward and SGD on tokens that stay the same and, as in a model, want gradients."""
    import torch

    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    tokens = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(1))
    tokens = tokens.to(group.device).requires_grad_()

    def step() -> None:
        forward(tokens).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        tokens.grad = None

    return step


ROWS = [
    Row(
        name="moe_layer_step",
        ours=_our_step,
        twin=_looped_step,
        says="a training step of MoELayer, which sorts tokens, against a loop with masks",
    ),
]
