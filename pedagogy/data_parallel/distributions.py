"""How different the ranks' gradients are, and what averaging leaves of them.

Each rank's gradient is that of the loss on its own part of the batch: the true gradient plus noise
of its own. After averaging all ranks hold the same tensor, and the noise has shrunk: by the square
root of N where the parts are independent. Where that no longer matters, more ranks no longer help.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from pedagogy.data_parallel.synchronous import average_gradients
from pedagogy.parameters import fill_gradients, flatten
from pedagogy.ranks import Group


class GradientDistributions(NamedTuple):
    """Histograms by rank: how many gradient values lie in each bin, before and after averaging."""

    edges: Tensor  # (bins + 1,)
    before: Tensor  # (ranks, bins)
    after: Tensor  # (ranks, bins)
    deviation_before: Tensor  # (ranks,): root mean square distance of a rank's from the mean one
    deviation_after: Tensor  # (ranks,): zeros, where averaging works


@torch.no_grad()
def gradient_distributions(
    group: Group, parameters: Iterable[Tensor], bins: int = 41
) -> GradientDistributions:
    """The distributions of all ranks' gradients; the gradients themselves are averaged on the way.

    **Bytes** the average's, and a few histograms. **Raises** ValueError for no bins or no gradient.
    """
    if bins < 1:
        raise ValueError(f"bins is {bins}; it must be 1 or more")
    used = fill_gradients(group, parameters)
    if not used:
        raise ValueError("0 parameters have a gradient on any rank: run backward first")
    own = flatten([parameter.grad for parameter in used]).cpu().float()
    largest = own.abs().max().to(group.device)
    edge = max(group.all_reduce_(largest, "max").item(), torch.finfo(torch.float32).tiny)
    average_gradients(group, used)
    mean = flatten([parameter.grad for parameter in used]).cpu().float()
    edges = torch.linspace(-edge, edge, bins + 1)
    center = group.broadcast_(mean.to(group.device).clone()).cpu()
    rows = torch.cat([
        torch.histogram(own, edges).hist,
        torch.histogram(mean, edges).hist,
        torch.stack([_distance(own, mean), _distance(mean, center)]),
    ]).to(group.device)  # fmt: skip
    table = torch.stack(group.all_gather(rows)).cpu()  # (ranks, 2 bins + 2)
    before, after, deviations = table[:, :bins], table[:, bins : 2 * bins], table[:, 2 * bins :]
    return GradientDistributions(edges, before, after, deviations[:, 0], deviations[:, 1])


def _distance(x: Tensor, y: Tensor) -> Tensor:
    return (x - y).square().mean().sqrt()
