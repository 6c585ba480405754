"""Explorer of chapter 04: a passage goes through the routers that the chapter has trained.

The passage is fixed; each router's probabilities for it are computed once, when the explorer is
made. A move adds noise to their logarithms (logits, up to a constant for each token, which no
softmax sees), chooses, and fills the buffers: a pure function of the controls.

Shazeer's `top_k` routes for k = 1 and 2. The models were trained with Switch's gate, k = 1 and no
limit; what they would do with another k, capacity or noise is what the explorer shows. Noise has
the same standard deviation for all, where Shazeer's gate learns one for each token and expert.

Sources: Shazeer et al. 2017, equation 4; Fedus et al. 2021 (Switch), equations 3 and 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial, update_wrapper

import torch
from matplotlib.figure import Figure
from torch import Tensor

from pedagogy.moe import expert_capacity, moe_layers, switch_loss, top_k
from pedagogy.moe.training import Training
from pedagogy.plots import style
from pedagogy.plots.moe import routing_figure
from pedagogy.widgets.controls import choice
from pedagogy.widgets.explorer import Explorer, Try

WINDOW = 32  # tokens: what the chapter's models read at once
PASSAGE = (
    'for i in range(12):  # 0, 1, 4, 9, ... 121\n    print(f"{i} squared is {i * i}"); '
    "total += i * i\n"
)
NO_LIMIT = 0.0
FACTORS = [(f"{factor:g}", factor) for factor in (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0)]
Logits = Mapping[tuple[int, float], Tensor]  # (experts, loss weight) -> (tokens, experts)


def passage_logits(training: Training, passage: str = PASSAGE) -> Tensor:
    """What the router of a trained model says of each character: log-probabilities.

    **Shapes** -> (characters, experts). **Raises** ValueError for a passage that is not ASCII, or
    does not fill windows of `WINDOW` characters.
    """
    if not passage.isascii() or len(passage) % WINDOW or not passage:
        raise ValueError(
            f"a passage of {len(passage)} characters: must be ASCII, in windows of {WINDOW}"
        )
    ids = torch.tensor(list(passage.encode())).view(-1, WINDOW)
    with torch.no_grad():
        training.model(ids)
    probabilities = next(moe_layers(training.model)).last.probabilities
    return probabilities.clamp(min=1e-30).log()


def render_routing(
    experts: int, loss_weight: float, k: int, capacity_factor: float, noise: float, logits: Logits
) -> Figure:
    """Draw where the passage's characters go; a capacity factor of `NO_LIMIT` is none.

    `noise` is the standard deviation of what is added to the logits, the same draw for each value.
    """
    seen = logits[experts, loss_weight]
    generator = torch.Generator().manual_seed(0)
    noisy = seen + noise * torch.randn(seen.shape, generator=generator)
    capacity = None
    if capacity_factor != NO_LIMIT:
        capacity = expert_capacity(len(seen), experts, capacity_factor, k)
    routing = top_k(noisy, k, capacity)
    title = f"{experts} experts, trained with {loss_weight:g} of the balancing loss"
    figure = routing_figure(PASSAGE, routing, capacity, title)
    balance = switch_loss(routing.probabilities, routing.experts).item()
    all_on_one = f"{experts} when one expert has all, with probability 1"
    told = f"E sum f P is {balance:.2f} (1 when f or P is even, {all_on_one})."
    return style.finding(figure, f"{figure.get_label()} {told}")


def routing_explorer(trainings: Mapping[tuple[int, float], Training]) -> Explorer:
    """Return the explorer of routing, over trainings by (experts, weight of the balancing loss).

    Try this: without the balancing loss, at a capacity factor of 1, see which characters find no
    room: the later ones of an expert. Raise the factor until all do: the buffers of experts that
    nobody asks for have grown with it. Go back to 1 and raise the noise: it spreads the choices.
    **Raises** ValueError where a number of experts lacks a weight that another has.
    """
    counts, weights = (sorted(set(values)) for values in zip(*trainings, strict=True))
    missing = [(n, w) for n in counts for w in weights if (n, w) not in trainings]
    if missing:
        raise ValueError(f"no training with (experts, loss weight) {missing}; each pair is needed")
    logits = {key: passage_logits(training) for key, training in trainings.items()}
    plain = {"experts": counts[-1], "k": 1, "capacity_factor": 1.0, "noise": 0.0}
    return Explorer(
        update_wrapper(partial(render_routing, logits=logits), render_routing),
        experts=[(str(count), count) for count in counts],
        loss_weight=[(f"{weight:g}", weight) for weight in weights],
        k=[1, 2],
        capacity_factor=choice([*FACTORS, ("no limit", NO_LIMIT)], 1.25),
        noise=(0.0, 2.0, 0.0, 0.1),
        try_this=_tries(plain, weights),
    )


def _tries(plain: dict, weights: list[float]) -> tuple[Try, ...]:
    low, high = weights[0], weights[-1]
    return (
        Try(
            "few do it all",
            f"a balancing loss of {low:g}: full buffers, and empty ones beside them",
            {**plain, "loss_weight": low},
        ),
        Try(
            "balanced",
            f"trained with {high:g} of the loss: fewer characters find no room",
            {**plain, "loss_weight": high},
        ),
        Try(
            "noise instead",
            f"{low:g} of the loss, and noise of 2 on the logits: it spreads the choices, and no "
            "longer asks what the character is",
            {**plain, "loss_weight": low, "noise": 2.0},
        ),
    )
