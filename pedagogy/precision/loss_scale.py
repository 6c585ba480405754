"""Multiply the loss, so that gradients fit fp16; divide them again before they are used.

Why it exists
-------------
fp16's smallest number is 2^-24. Smaller gradients become 0 on their way back, and nothing that is
done afterwards brings them back. But backward is linear: a loss times S gives gradients times S,
exactly, where S is a power of two. Chosen well, S moves all of them into the range.

A constant S works if it is known (`StaticLossScaler`). `DynamicLossScaler` searches: too large a
scale shows, because some gradient is infinite or NaN; then the step is skipped and S halved. After
`growth_interval` steps without, S is doubled.

The order within a step
-----------------------
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)          only if something looks at the gradients: clipping
    clip_grad_norm_(...)                at true size; before, it would shrink every update S-fold
    if scaler.step(optimizer):          does nothing if a gradient is not finite
        scheduler.step()                a schedule counts updates, and there was none otherwise
    scaler.update()                     once an iteration, in every branch

The loss itself must be in fp32 (logits.float(), then cross-entropy): its own gradient is the scale,
and 65,536 is beyond fp16.

On several ranks
----------------
A gradient that is cut over ranks (tensor or pipeline parallelism, ZeRO) may be infinite on one rank
only. If each decided alone, some would step and others not. So the flag is the maximum over all
`groups` before anything is decided.

Sources: Micikevicius et al. 2018, section 3.2 (a constant; the search is named as future work);
defaults and states are those of torch.amp.GradScaler, which a test compares step by step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from pedagogy.precision.master_weights import MasterWeights
from pedagogy.ranks import Group

LARGEST_SCALE = torch.finfo(torch.float32).max  # where torch's scaler stops growing


class StaticLossScaler:
    """A constant factor. `step` skips nothing: an infinite gradient reaches the weights.

    **Raises** ValueError for a scale that is not positive.
    """

    def __init__(self, scale: float) -> None:
        if not 0 < scale < float("inf"):
            raise ValueError(f"a loss scale of {scale}: must be positive and finite")
        self._scale = float(scale)
        self._unscaled: set[int] = set()  # optimizers that were unscaled since the last update
        self._stepped: set[int] = set()

    def scale(self, loss: Tensor) -> Tensor:
        """The loss, times the scale."""
        return loss * self._scale

    def get_scale(self) -> float:
        """The factor of the next loss."""
        return self._scale

    @torch.no_grad()
    def unscale_(self, optimizer: Any) -> None:
        """The gradients of the optimizer's parameters have their true size, in place, in fp32.

        **Raises** RuntimeError if that was done since the last `update`; ValueError for gradients
        in fp16, which would underflow right here (`MasterWeights` holds them in fp32).
        """
        if id(optimizer) in self._unscaled:
            raise RuntimeError("unscale_() was called already on this optimizer since update()")
        if isinstance(optimizer, MasterWeights):
            optimizer.take_gradients()
        gradients = list(gradients_of(optimizer))
        if any(gradient.dtype == torch.float16 for gradient in gradients):
            raise ValueError(
                "gradients in fp16 cannot be unscaled: divided by the scale they underflow again; "
                "keep the weights in fp32 (autocast), or wrap the optimizer in MasterWeights"
            )
        for gradient in gradients:
            self._look_at(gradient, optimizer)
            gradient.mul_(1 / self._scale)
        self._unscaled.add(id(optimizer))

    def step(self, optimizer: Any) -> bool:
        """Unscale if that was not done, and step the optimizer; True.

        **Raises** RuntimeError for a second step without `update`.
        """
        self._begin_step(optimizer)
        optimizer.step()
        return True

    def update(self) -> None:
        """End of the iteration."""
        self._unscaled.clear()
        self._stepped.clear()

    def _begin_step(self, optimizer: Any) -> None:
        if id(optimizer) in self._stepped:
            raise RuntimeError("step() was called already on this optimizer since update()")
        if id(optimizer) not in self._unscaled:
            self.unscale_(optimizer)
        self._stepped.add(id(optimizer))

    def _look_at(self, gradient: Tensor, optimizer: Any) -> None:
        """A constant scale asks nothing of the gradients."""


class DynamicLossScaler(StaticLossScaler):
    """A factor that halves when a gradient is not finite, and doubles after a while without.

    `groups` are those over which parameters are cut: all their ranks take one decision.
    **Raises** ValueError for factors on the wrong side of 1, or an interval below 1.
    """

    def __init__(
        self,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        groups: Iterable[Group] = (),
    ) -> None:
        super().__init__(init_scale)
        if not (growth_factor > 1 and 0 < backoff_factor < 1 and growth_interval >= 1):
            raise ValueError(
                f"growth {growth_factor} (must be above 1), backoff {backoff_factor} (between 0 "
                f"and 1), interval {growth_interval} (1 or more)"
            )
        self.growth_factor, self.backoff_factor = growth_factor, backoff_factor
        self.growth_interval, self.groups = growth_interval, tuple(groups)
        self._steps_without = 0
        self._not_finite: dict[int, bool] = {}  # by optimizer, since the last update

    def unscale_(self, optimizer: Any) -> None:
        """As before; and all ranks know whether some gradient of some rank is not finite."""
        self._not_finite.setdefault(id(optimizer), False)
        super().unscale_(optimizer)
        self._not_finite[id(optimizer)] = anywhere(self._not_finite[id(optimizer)], self.groups)

    def step(self, optimizer: Any) -> bool:
        """Step the optimizer if all gradients are finite; whether it did.

        **Raises** RuntimeError for a second step without `update`.
        """
        self._begin_step(optimizer)
        if self._not_finite[id(optimizer)]:
            if isinstance(optimizer, MasterWeights):
                optimizer.zero_grad()  # the next gradients would be added to infinity
            return False
        optimizer.step()
        return True

    def update(self) -> None:
        """The scale of the next iteration. **Raises** RuntimeError if no gradient was looked at."""
        if not self._not_finite:
            raise RuntimeError("update() before any step(): there is nothing to go by")
        if any(self._not_finite.values()):
            self._scale *= self.backoff_factor
            self._steps_without = 0
        else:
            self._steps_without += 1
            if self._steps_without == self.growth_interval:
                grown = self._scale * self.growth_factor
                self._scale = grown if grown <= LARGEST_SCALE else self._scale
                self._steps_without = 0
        self._not_finite.clear()
        super().update()

    def state_dict(self) -> dict[str, float]:
        """The scale, and how many steps went well since it changed."""
        return {"scale": self._scale, "steps_without": self._steps_without}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Go on from `state_dict`."""
        self._scale, self._steps_without = float(state["scale"]), int(state["steps_without"])

    def _look_at(self, gradient: Tensor, optimizer: Any) -> None:
        if not gradient.isfinite().all():
            self._not_finite[id(optimizer)] = True


def gradients_of(optimizer: Any) -> Iterator[Tensor]:
    """The gradients of an optimizer's parameters."""
    for group in optimizer.param_groups:
        yield from (p.grad for p in group["params"] if p.grad is not None)


def anywhere(flag: bool, groups: Iterable[Group]) -> bool:
    """Whether the flag is set on some rank of the groups, known to all of them.

    **Bytes** an all_reduce of one number for each group.
    """
    for group in groups:
        flag = bool(group.all_reduce(torch.tensor(int(flag), device=group.device), "max"))
    return flag


def all_finite(loss: Tensor, groups: Iterable[Group]) -> bool:
    """Whether the loss is finite on all ranks: to skip a bad batch together, before backward.

    A rank that skips backward alone leaves the others waiting in their all_reduce.
    """
    return not anywhere(not bool(loss.isfinite().all()), groups)
