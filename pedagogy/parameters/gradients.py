"""Gradients of several ranks, where one rank may have a gradient that another has not.

Why it exists
-------------
A parameter that took no part in a rank's forward has `.grad` None there. A rank that skips it
leaves the others waiting in their all_reduce. So the ranks first tell each other which gradients
exist: where some rank has one, the others contribute zero; where none has, it stays None on all,
as in one process, and the optimizer skips it.

Every rank must pass the same parameters in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pedagogy.parameters.flat import unique_parameters

if TYPE_CHECKING:
    from pedagogy.ranks import Group


def fill_gradients(group: Group, parameters: Iterable[Tensor]) -> list[Tensor]:
    """The parameters that have a gradient on some rank; zero on the ranks that had none."""
    parameters = [p for p in unique_parameters(parameters) if p.requires_grad]
    check_dense(parameters)
    if not parameters:
        return []
    exists = [parameter.grad is not None for parameter in parameters]
    flags = torch.tensor(exists, dtype=torch.uint8, device=parameters[0].device)
    anywhere = group.all_reduce(flags, "max").tolist()  # refuses unequal numbers of parameters
    filled = [p for p, somewhere in zip(parameters, anywhere, strict=True) if somewhere]
    for parameter in filled:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return filled


def check_dense(parameters: Iterable[Tensor]) -> None:
    """Raise ValueError where a gradient is sparse: its indices differ between the ranks."""
    num_sparse = sum(p.grad is not None and p.grad.layout != torch.strided for p in parameters)
    if num_sparse:
        raise ValueError(
            f"{num_sparse} parameters have sparse gradients, which cannot be averaged in place; "
            "use nn.Embedding(..., sparse=False)"
        )


@torch.no_grad()
def sum_gradients(group: Group, parameters: Iterable[Tensor]) -> None:
    """Every `.grad` is the sum over the ranks, in place: for a loss that is a sum over samples.

    **Bytes** as `average_gradients`.
    """
    for parameter in fill_gradients(group, parameters):
        group.all_reduce_(parameter.grad)
