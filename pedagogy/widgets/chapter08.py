"""Explorers of chapter 08: what each policy costs, and where each saved tensor lives.

Both replay profiles that were measured before: a move of a control predicts, it runs nothing. The
link is given in proportion to the workload, as how often it could carry all that is saved (one way)
while an iteration lasts; so the same setting means the same on every machine. "swap or recompute"
may think for half a second about a model of two layers: budget and link act on release, and nothing
is decided twice.

    keep everything     nothing is dropped
    speed, memory, cost SuperNeurons' policies, on the model's segments
    swap all            all large tensors go to the host, each called back one ask ahead
    by operation        what products and convolutions read is swapped, the cheap made again
    swap or recompute   decided from the profile, under the budget
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import ipywidgets
from matplotlib.figure import Figure

from pedagogy.plots import style
from pedagogy.plots.recompute import Point, policy_figure
from pedagogy.plots.recompute_lifetimes import lifetime_figure
from pedagogy.plots.recompute_lives import held_over_time, lives
from pedagogy.recompute import (
    Decision,
    Profile,
    by_operation,
    by_policy,
    predict,
    swap_or_recompute,
)
from pedagogy.recompute.evidence import swapped
from pedagogy.widgets.controls import choice, menu
from pedagogy.widgets.explorer import Explorer, Try

KEEP, SWAP_ALL, BOTH = "keep everything", "swap all", "swap or recompute"
POLICIES = (KEEP, "speed", "memory", "cost", SWAP_ALL, "by operation", BOTH)
BUDGETS = [(f"{share} % of the peak", share / 100) for share in range(40, 101, 5)]
LINKS = [(f"{times:g} x what is saved", times) for times in (0.25, 0.5, 1, 2, 4, 8, 16, 32)]
ROOM = 5.0  # inches of the rows, however many they are


def link_bandwidth(profile: Profile, link: float) -> float:
    """Bytes a second of a link that carries all that is saved `link` times in an iteration."""
    return link * sum(saved.nbytes for saved in profile.saved.values()) / profile.seconds


def decided(profile: Profile, policy: str, budget: float, link: float) -> Decision:
    """What a policy does with a profile; `budget` is a share of its peak.

    **Raises** ValueError for a budget that "swap or recompute" does not reach.
    """
    bandwidth = link_bandwidth(profile, link)
    if policy == KEEP:
        return Decision({}, {}, predict(profile, {}))
    if policy == SWAP_ALL:
        return swapped(profile, bandwidth)
    if policy == "by operation":
        return by_operation(profile, bandwidth)
    if policy == BOTH:
        return swap_or_recompute(profile, int(budget * profile.peak), bandwidth)
    return by_policy(profile, policy)


Decide = Callable[[str, str, float, float], Decision]


def _remembering(profiles: Mapping[str, Profile]) -> Decide:
    """`decided` for a model's name; nothing is decided twice."""
    known: dict[tuple, Decision] = {}

    def decide(model: str, policy: str, budget: float, link: float) -> Decision:
        of_link = link if policy in (SWAP_ALL, "by operation", BOTH) else None
        setting = (model, policy, budget if policy == BOTH else None, of_link)
        if setting not in known:
            known[setting] = decided(profiles[model], policy, budget, link)
        return known[setting]

    return decide


def _on_release(options: list, default: float) -> ipywidgets.SelectionSlider:
    slider = choice(options, default)
    slider.continuous_update = False
    return slider


def _check(profiles: Mapping[str, Profile]) -> None:
    if not profiles:
        raise ValueError("0 profiles were given: an explorer needs 1 or more")


def policy_explorer(profiles: Mapping[str, Profile]) -> Explorer:
    """Return the explorer of what each policy costs: {model's name: `profile(model, batch)`}.

    Try this: a fast link makes swapping free; a slow one makes recomputation the cheaper half; and
    under a tight budget only a decision from measurements fits.
    """
    _check(profiles)
    decide = _remembering(profiles)

    def render_policies(model: str, budget: float, link: float) -> Figure:
        profile, points = profiles[model], {}
        for policy in POLICIES:
            try:
                found = decide(model, policy, budget, link).prediction
            except ValueError:  # the budget is out of reach
                continue
            points[policy] = Point((found.seconds, found.peak))
        slowest = max(point.best[0] for point in points.values())
        limits = (0.98 * profile.seconds, max(1.15 * profile.seconds, 1.03 * slowest))
        figure = policy_figure(
            points,
            budget=budget * profile.peak,
            title=f"{model}: bytes against time, predicted from a profile",
            limits=(limits, (0.0, 1.12 * profile.peak)),
        )
        best = decide(model, BOTH, budget, link) if BOTH in points else None
        return style.finding(figure, _policies_text(profile, best, budget, link, points))

    models = list(profiles)
    return Explorer(
        render_policies,
        model=menu(models, models[0]),
        budget=_on_release(BUDGETS, 0.7),
        link=_on_release(LINKS, 2),
        try_this=(
            Try(
                "a fast link",
                "32 times what is saved: swap or recompute adds no time, it only swaps",
                {"budget": 0.7, "link": 32},
            ),
            Try(
                "a slow link",
                "half of what is saved: swapping all waits; swap or recompute makes some tensors "
                "again instead, and is faster",
                {"budget": 0.8, "link": 0.5},
            ),
            Try(
                "half of the memory",
                "a budget of 50 %: swap or recompute is the only one that fits",
                {"budget": 0.5, "link": 8},
            ),
        ),
    )


def _policies_text(
    profile: Profile, best: Decision | None, budget: float, link: float, points: Mapping
) -> str:
    speed = f"{style.bytes_text(link_bandwidth(profile, link))}/s"
    limit = budget * profile.peak
    fit = [policy for policy, point in points.items() if point.best[1] <= limit]
    start = f"With a link of {speed} and a budget of {style.bytes_text(limit)}"
    if best is None:
        return f"{start} swap or recompute finds no choice that fits; {_fitting(fit)}."
    actions = list(best.actions.values())
    added = max(0.0, best.prediction.seconds / profile.seconds - 1)
    return (
        f"{start} swap or recompute swaps {actions.count('swap')} tensors, makes "
        f"{actions.count('recompute')} again and adds {added:.1%} of time; {_fitting(fit)}."
    )


def _fitting(policies: list[str]) -> str:
    return f"within the budget: {', '.join(policies) or 'none'}"


def lifetime_explorer(profiles: Mapping[str, Profile]) -> Explorer:
    """Return the explorer of where each saved tensor lives over time, under each policy.

    Try this: everything kept, what was made first waits longest; dropped, tensors are nowhere for
    most of the iteration; over a slow link they are still here when backward begins.
    """
    _check(profiles)
    decide = _remembering(profiles)

    def render_lifetimes(model: str, policy: str, budget: float, link: float) -> Figure:
        profile = profiles[model]
        kept = lives(profile, decide(model, KEEP, budget, link).prediction, {})
        found = decide(model, policy, budget, link)
        return lifetime_figure(
            profile,
            found.prediction,
            found.actions,
            title=f"{model}, {policy}: where each saved tensor lives",
            row=ROOM / len(kept),
            end=max(1.02 * found.prediction.seconds, 1.25 * profile.seconds),
            scale=max(held for _, held in held_over_time(kept)),
        )

    models = list(profiles)
    return Explorer(
        render_lifetimes,
        model=menu(models, models[0]),
        policy=menu(list(POLICIES[::-1]), BOTH),
        budget=_on_release(BUDGETS, 0.7),
        link=_on_release(LINKS, 8),
        try_this=(
            Try(
                "keep everything",
                "what forward makes first, backward needs last: the strip is full in the middle",
                {"policy": KEEP},
            ),
            Try(
                "drop and make again",
                "speed: what is cheap is nowhere until backward comes to it; the strip is lower",
                {"policy": "speed"},
            ),
            Try(
                "swap over a slow link",
                "a quarter of what is saved: copies queue, tensors that should be away are still "
                "here when backward begins",
                {"policy": SWAP_ALL, "link": 0.25},
            ),
        ),
    )
