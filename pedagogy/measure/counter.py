"""FLOPs of a call, counted operation by operation.

Why it exists
-------------
"6 x parameters x tokens" is an estimate that leaves attention out. PyTorch can count: each matrix
product, convolution and attention that passes, forward or backward, as 2 FLOPs for each
multiply-add. Element-wise work (norms, GELU, softmax, the optimizer) is not counted: it is limited
by bytes, not by FLOPs. `pedagogy.costs.compute` holds the closed form that this confirms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.flop_counter import FlopCounterMode


def count_flops(function: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
    """FLOPs of the matrix products and convolutions in one call, backward passes included.

    >>> count_flops(lambda: model.loss(inputs, targets).backward())
    """
    counter = FlopCounterMode(display=False)
    with counter:
        function(*args, **kwargs)
    return counter.get_total_flops()
