"""A linear layer cut over ranks: by columns, with nothing to sum, or by rows, with a sum.

How it works
------------
A matrix product is many dot products. y = x A has two ways to share them out.

    by columns   A = [A_0 | A_1]      rank i computes y_i = x A_i: whole dot products, other outputs
    by rows      A = [A_0 ; A_1]      rank i computes x_i A_i: a part of every dot product;
                 x = [x_0 | x_1]      y is their sum

Two layers in a row need only one communication if the first is cut by columns and the second by
rows: the first leaves its output cut exactly as the second wants its input, and an elementwise
function between them (GELU) does not mind.

    x --f--> [column parallel] --GELU--> [row parallel] --g--> y

f copies in the forward and sums the gradient in the backward; g sums in the forward and copies in
the backward. One all_reduce each way.

The trap: the bias of a row-parallel layer. Added before the sum it is added once per rank; divided
by the ranks it comes out right, but then its gradient is divided as well. It is added once, after
the sum, and every rank holds it whole.

PyTorch stores the transpose, `(out_features, in_features)`: cutting by columns cuts dimension 0.

Source: Shoeybi et al. 2019 (Megatron-LM), section 3.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from pedagogy.collectives import copy_to, gather_from, reduce_from, split_to
from pedagogy.costs.multiples import check_divides
from pedagogy.ranks import Group


def share(total: int, group: Group, what: str) -> int:
    """What one rank gets of `total`. **Raises** ValueError where the ranks do not divide it."""
    check_divides(group.size, **{what: total})
    return total // group.size


def shard_of(group: Group, full: Tensor, dim: int) -> nn.Parameter:
    """This rank's slice along `dim` of rank 0's `full`, as a parameter.

    **Bytes** a broadcast of the whole: ranks are seeded differently, and must cut one tensor.
    """
    whole = group.broadcast(full.detach())
    return nn.Parameter(whole.chunk(group.size, dim)[group.rank].clone(), full.requires_grad)


def copy_of(group: Group, full: Tensor) -> nn.Parameter:
    """Rank 0's `full`, whole, on every rank, as a parameter."""
    return nn.Parameter(group.broadcast(full.detach()), full.requires_grad)


class ColumnParallelLinear(nn.Module):
    """Rank i computes the i-th slice of the outputs.

    **Shapes** `(..., in_features)` -> `(..., out_features / N)`, or all of it with `gather_output`.
    **Bytes** backward: an all_reduce of the input's gradient.
    **Raises** ValueError where the ranks do not divide out_features.
    Source: Shoeybi et al. 2019, section 3.
    """

    def __init__(
        self,
        group: Group,
        in_features: int,
        out_features: int,
        bias: bool = True,
        gather_output: bool = False,
    ) -> None:
        super().__init__()
        share(out_features, group, "out_features")
        self._cut(group, nn.Linear(in_features, out_features, bias), gather_output)

    @classmethod
    def from_linear(
        cls, group: Group, linear: nn.Linear, gather_output: bool = False
    ) -> ColumnParallelLinear:
        """The slice of an existing layer (rank 0's values hold)."""
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        share(linear.out_features, group, "out_features")
        layer._cut(group, linear, gather_output)
        return layer

    def _cut(self, group: Group, linear: nn.Linear, gather_output: bool) -> None:
        self.group, self.gather_output = group, gather_output
        self.weight = shard_of(group, linear.weight, 0)
        self.bias = None if linear.bias is None else shard_of(group, linear.bias, 0)

    def forward(self, x: Tensor) -> Tensor:
        """f, then this rank's columns."""
        return self.local(copy_to(self.group, x))

    def local(self, x: Tensor) -> Tensor:
        """This rank's columns of an input that has been through f already."""
        y = functional.linear(x, self.weight, self.bias)  # (..., out_features / N)
        return gather_from(self.group, y) if self.gather_output else y


class RowParallelLinear(nn.Module):
    """Rank i multiplies the i-th slice of the inputs; the products are summed.

    **Shapes** `(..., in_features / N)` (or all of it, where `input_is_parallel` is False) ->
    `(..., out_features)`. **Bytes** forward: an all_reduce of the output.
    **Raises** ValueError where the ranks do not divide in_features.
    Source: Shoeybi et al. 2019, section 3.
    """

    def __init__(
        self,
        group: Group,
        in_features: int,
        out_features: int,
        bias: bool = True,
        input_is_parallel: bool = True,
    ) -> None:
        super().__init__()
        share(in_features, group, "in_features")
        self._cut(group, nn.Linear(in_features, out_features, bias), input_is_parallel)

    @classmethod
    def from_linear(
        cls, group: Group, linear: nn.Linear, input_is_parallel: bool = True
    ) -> RowParallelLinear:
        """The slice of an existing layer (rank 0's values hold)."""
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        share(linear.in_features, group, "in_features")
        layer._cut(group, linear, input_is_parallel)
        return layer

    def _cut(self, group: Group, linear: nn.Linear, input_is_parallel: bool) -> None:
        self.group, self.input_is_parallel = group, input_is_parallel
        self.weight = shard_of(group, linear.weight, 1)
        self.bias = None if linear.bias is None else copy_of(group, linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """This rank's part of every dot product, then g, then the bias, once."""
        if not self.input_is_parallel:
            x = split_to(self.group, x)
        y = reduce_from(self.group, self.partial(x))
        return y if self.bias is None else y + self.bias

    def partial(self, x: Tensor) -> Tensor:
        """This rank's part of the sum, before g and without the bias."""
        if x.size(-1) != self.weight.size(-1):
            raise ValueError(
                f"an input of {x.size(-1)} features: this rank multiplies {self.weight.size(-1)}; "
                "input_is_parallel=False takes the whole input"
            )
        return functional.linear(x, self.weight)


def gather_linear(group: Group, layer: ColumnParallelLinear | RowParallelLinear) -> nn.Linear:
    """The ordinary layer that was cut, on every rank. **Bytes** an all_gather of its weights."""
    column = isinstance(layer, ColumnParallelLinear)
    weight = torch.cat(group.all_gather(layer.weight.detach()), 0 if column else 1)
    whole = nn.Linear(weight.size(1), weight.size(0), layer.bias is not None)
    whole = whole.to(weight.device, weight.dtype)
    with torch.no_grad():
        whole.weight.copy_(weight)
        if layer.bias is not None:
            bias = layer.bias.detach()
            whole.bias.copy_(torch.cat(group.all_gather(bias)) if column else bias)
    return whole
