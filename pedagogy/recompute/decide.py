"""From a profile to an action for each saved tensor.

Policies of a known kind
------------------------
`by_policy` finds the segments of a real model, chain or not. What is saved and could be made again
without running an expensive operation is dropped; tensors whose making shares an operation belong
to one segment. "speed", "memory" and "cost" are then those of `policies`.

`by_operation` is the division of labour that SuperNeurons draws from its measurements: what a
matrix product or convolution read is sent away, what normalisations and activations need is made
again.

Swap or recompute, measured
---------------------------
`swap_or_recompute` asks neither what an operation is called nor how it is usually treated. While
the peak is over the budget:

    [1] the link's free time    whatever can leave and be back before it is asked for, while the
                                link has nothing else to do, costs nothing: the longest free time
                                first
    [2] the best price          then each step drops or swaps (or takes back) what saves most bytes
                                for each second that it adds, by the replay of `predict`; where no
                                step helps any more, once again by bytes, whatever the seconds
    [3] second thoughts         what later steps made needless is taken back, if it costs something

Free time of a tensor: from the end of its copy out to the last moment when its copy back can start.

Sources: Peng et al. 2020 (Capuchin), sections 4.3 and 4.4; Wang et al. 2018, section 3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import accumulate
from typing import NamedTuple

from pedagogy.recompute.again import ALONE, KEEP, RECOMPUTE, SWAP
from pedagogy.recompute.made import Key
from pedagogy.recompute.policies import POLICIES
from pedagogy.recompute.predict import Prediction, check_link, predict
from pedagogy.recompute.profile import Profile

EXPENSIVE = frozenset(("convolution", "addmm", "mm", "bmm", "baddbmm", "embedding"))
_AT_THE_END = frozenset(("log_softmax", "nll_loss_forward"))  # backward asks for it at once


class Decision(NamedTuple):
    """An action for each saved storage, when swapped ones are called, and what that should cost."""

    actions: Mapping[Key, str]
    calls: Mapping[int, tuple[Key, ...]]
    prediction: Prediction

    def rule(self, made: object) -> str:
        """For `by_rule`."""
        return self.actions.get(made.key, KEEP)


def by_policy(profile: Profile, policy: str, budget: int | None = None) -> Decision:
    """SuperNeurons' policies on the segments of this model. `budget`: as for `plan`.

    **Raises** ValueError for another policy. Source: Wang et al. 2018, section 3.4.
    """
    if policy not in POLICIES:
        raise ValueError(f"policy {policy!r}: choose one of {', '.join(POLICIES)}")
    needs = [_working_set(profile, {op.number}) for op in profile.operations]
    limit = max(needs) if budget is None else budget
    actions: dict[Key, str] = {}
    for ops, keys in _segments(profile):
        fast = policy == "speed" or (policy == "cost" and _working_set(profile, ops) <= limit)
        actions |= dict.fromkeys(keys, RECOMPUTE if fast else ALONE)
    return Decision(actions, {}, predict(profile, actions))


def by_operation(profile: Profile, link_bandwidth: float) -> Decision:
    """What matrix products and convolutions read is swapped, the rest is made again if it is cheap.

    `link_bandwidth`: bytes per second, each way.
    **Raises** ValueError for a link that is not positive. Source: Wang et al. 2018, section 3.3.
    """
    check_link(link_bandwidth)
    read = {key for op in profile.operations if op.name in EXPENSIVE for key in op.inputs}
    cheap = {key for _, keys in _segments(profile) for key in keys}
    actions = dict.fromkeys(cheap, RECOMPUTE)
    actions |= dict.fromkeys(read & _movable(profile).keys(), SWAP)
    return _decided(profile, actions, link_bandwidth)


def swap_or_recompute(profile: Profile, budget: int, link_bandwidth: float) -> Decision:
    """The actions that bring the peak under `budget` bytes, and cost the fewest seconds we find.

    `link_bandwidth`: bytes per second, each way. It is a greedy choice, as in the paper.
    **Raises** ValueError for a link that is not positive, or a budget that no such choice reaches.
    Source: Peng et al. 2020 (Capuchin), section 4.4.
    """
    check_link(link_bandwidth)
    start = _with_free_swaps(profile, budget, link_bandwidth)  # [1]
    if start.prediction.peak <= budget:
        return start
    needed = []
    for price in (_price, _bytes_saved):  # [2]
        chosen = _step_by_step(profile, start, budget, link_bandwidth, price)
        if chosen.prediction.peak <= budget:
            return _without_needless(profile, chosen, budget, link_bandwidth)  # [3]
        needed.append(chosen.prediction.peak)
    raise ValueError(
        f"a budget of {budget} bytes is not reached: the least peak found is {min(needed)}, and no "
        "other tensor helps"
    )


def recompute_seconds(profile: Profile, key: Key) -> float:
    """How long it takes to make this storage again, if everything else that is saved is there."""
    return sum(profile.operations[number].seconds for number in _lineage(profile, key, ()))


def _decided(profile: Profile, actions: Mapping[Key, str], bandwidth: float) -> Decision:
    calls = _calls(profile, actions, bandwidth)
    return Decision(actions, calls, predict(profile, actions, bandwidth, calls))


def _with_free_swaps(profile: Profile, budget: int, bandwidth: float) -> Decision:
    """[1] What can leave and be back in time, and lowers the excess, until the rest fits."""
    chosen = _decided(profile, {}, bandwidth)
    free = {key: _free_seconds(profile, key, bandwidth) for key in _movable(profile)}
    for key in sorted((key for key in free if free[key] >= 0), key=lambda key: -free[key]):
        if chosen.prediction.peak <= budget:
            break
        trial = _decided(profile, {**chosen.actions, key: SWAP}, bandwidth)
        costs_nothing = trial.prediction.seconds <= profile.seconds * (1 + 1e-9)
        if costs_nothing and _over(trial, budget) < _over(chosen, budget):
            chosen = trial
    return chosen


def _step_by_step(
    profile: Profile,
    start: Decision,
    budget: int,
    bandwidth: float,
    price: Callable[[Decision, Decision, int], float],
) -> Decision:
    """[2] The best change of one action, again and again, until it fits or none helps."""
    chosen, movable = start, _movable(profile)
    while chosen.prediction.peak > budget:
        before = chosen
        trials = [
            _decided(profile, {**before.actions, key: action}, bandwidth)
            for key in movable
            for action in (KEEP, RECOMPUTE, SWAP)
            if before.actions.get(key, KEEP) != action
        ]
        best = max(trials, key=lambda trial: price(trial, before, budget), default=before)
        if _over(best, budget) >= _over(before, budget):
            break
        chosen = best
    return chosen


def _without_needless(
    profile: Profile, chosen: Decision, budget: int, bandwidth: float
) -> Decision:
    """[3] What can be kept after all."""
    for key in list(chosen.actions):
        fewer = {k: action for k, action in chosen.actions.items() if k != key}
        trial = _decided(profile, fewer, bandwidth)
        if trial.prediction.peak <= budget and trial.prediction.seconds < chosen.prediction.seconds:
            chosen = trial
    return chosen


def _movable(profile: Profile) -> dict[Key, int]:
    """What is worth a decision: large enough, and not at once asked for again."""
    large = max((saved.nbytes for saved in profile.saved.values()), default=0) / 64
    return {
        key: saved.nbytes
        for key, saved in profile.saved.items()
        if saved.nbytes >= large
        and profile.operations[key[0]].name not in _AT_THE_END
        and profile.repeats(key)
    }


def _over(decision: Decision, budget: int) -> int:
    """Bytes over the budget, summed over all readings."""
    return sum(max(0, live - budget) for live in decision.prediction.live)


def _price(trial: Decision, before: Decision, budget: int) -> float:
    """Bytes over the budget that it saves, for each second that it adds."""
    added = trial.prediction.seconds - before.prediction.seconds
    return _bytes_saved(trial, before, budget) / max(added, 1e-9)


def _bytes_saved(trial: Decision, before: Decision, budget: int) -> float:
    """The same, whatever the seconds: cheap steps can lead to where no step helps."""
    return _over(before, budget) - _over(trial, budget)


def _asked_at(profile: Profile) -> list[float]:
    """The second of each ask."""
    return list(
        accumulate(
            (seconds for seconds, _ in profile.backward[1:-1]),
            initial=profile.forward_seconds + profile.backward[0][0],
        )
    )


def _free_seconds(profile: Profile, key: Key, bandwidth: float) -> float:
    """How long a tensor would be away, copies not counted; negative if the link is too slow."""
    saved = profile.saved[key]
    made_at = sum(op.seconds for op in profile.operations[: key[0] + 1])
    return _asked_at(profile)[saved.asks[0]] - made_at - 2 * saved.nbytes / bandwidth


def _calls(
    profile: Profile, actions: Mapping[Key, str], bandwidth: float
) -> dict[int, tuple[Key, ...]]:
    """For each swapped storage the last ask at which its copy back can start and be in time."""
    asked_at = _asked_at(profile)
    swapped = [key for key, action in actions.items() if action == SWAP]
    latest, calls = float("inf"), {}
    for key in sorted(swapped, key=lambda key: -profile.saved[key].asks[0]):
        saved = profile.saved[key]
        latest = min(latest, asked_at[saved.asks[0]]) - saved.nbytes / bandwidth
        in_time = [ask for ask, second in enumerate(asked_at) if second <= latest]
        calls.setdefault(max(in_time, default=0), []).insert(0, key)
    return {ask: tuple(keys) for ask, keys in calls.items()}


def _segments(profile: Profile) -> list[tuple[set[int], list[Key]]]:
    """What is cheap to make again: the operations that run for it, and the saved storages."""
    lineage: dict[Key, set[int]] = {}  # of what is dropped
    for key in profile.saved:
        ops = _lineage(profile, key, lineage)
        names = {profile.operations[number].name for number in ops}
        if not names & (EXPENSIVE | _AT_THE_END) and profile.repeats(key):
            lineage[key] = ops
    segments: list[tuple[set[int], list[Key]]] = []
    for key, ops in lineage.items():
        joined = [segment for segment in segments if segment[0] & ops]
        segments = [segment for segment in segments if not segment[0] & ops]
        all_ops = ops.union(*(others for others, _ in joined))
        segments.append((all_ops, [k for _, keys in joined for k in keys] + [key]))
    return segments


def _lineage(profile: Profile, key: Key, dropped: Collection[Key]) -> set[int]:
    """The operations that make it, back to what is kept."""
    found: set[int] = set()
    waiting = [key]
    while waiting:
        number = waiting.pop()[0]
        if number not in found:
            found.add(number)
            waiting += [
                source
                for source in profile.operations[number].inputs
                if profile.repeats(source) and (source not in profile.saved or source in dropped)
            ]
    return found


def _working_set(profile: Profile, ops: set[int]) -> int:
    """Bytes that a speed-centric backward of these operations has in hand, as `plan` counts."""
    operations = [profile.operations[number] for number in sorted(ops)]

    def size(keys: set[Key]) -> int:
        return sum(profile.operations[number].nbytes[output] for number, output in keys)

    made = {(op.number, output) for op in operations for output in op.nbytes}
    read = {key for op in operations for key in op.inputs}
    last = operations[-1]
    gradients = size(set(last.inputs)) + sum(last.nbytes.values())
    return size(made | read) + gradients
