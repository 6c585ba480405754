"""A device that is too small, on any machine.

Why it exists
-------------
Many chapters begin with a model that does not fit, and a laptop has no small GPU to show it on.
A `DeviceBudget` is a memory meter with a limit: when the live bytes pass it, the operation fails
as it would on a GPU, with the same exception type, `torch.OutOfMemoryError`, so code that catches
the one catches the other. Unlike a GPU's message, this one says what filled the memory.

What it costs
-------------
As much as the meter. The bytes of the failing operation exist for an instant before they are
counted and dropped, so this is a limit on what is kept, not protection for the machine.
"""

from __future__ import annotations

from typing import Any

import torch

from pedagogy.measure.meter import MemoryMeter


class BudgetExceeded(torch.OutOfMemoryError):
    """The live bytes passed the limit of a `DeviceBudget`."""


class DeviceBudget(MemoryMeter):
    """A memory meter that raises as soon as more than `num_bytes` are live.

    >>> with DeviceBudget(40_000_000, model, optimizer):
    ...     model.loss(*batch).backward()

    **Raises** ValueError for a negative limit; BudgetExceeded, with what is live by kind, at the
    operation that passes the limit, or on entry if module and optimizer alone pass it.
    """

    def __init__(
        self,
        num_bytes: int,
        module: torch.nn.Module | None = None,
        optimizer: Any = None,
        device: torch.device | str | None = None,
    ) -> None:
        if num_bytes < 0:
            raise ValueError(f"a budget of {num_bytes} bytes: must be 0 or more")
        super().__init__(module, optimizer, device)
        self.num_bytes = num_bytes

    def __enter__(self) -> DeviceBudget:
        super().__enter__()
        try:
            self._check("module and optimizer")
        except BudgetExceeded as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Run one operation, count what it made, and fail if that is too much."""
        result = super().__torch_dispatch__(func, types, args, kwargs)
        self._check(f"the operation {func}")
        return result

    def _check(self, what: str) -> None:
        if self._total <= self.num_bytes:
            return
        kinds = ", ".join(f"{kind} {size:,}" for kind, size in self.now_by_kind.items() if size)
        raise BudgetExceeded(
            f"out of memory: {what} brought the live bytes to {self._total:,}, "
            f"{self._total - self.num_bytes:,} over the budget of {self.num_bytes:,}. "
            f"Live by kind: {kinds}."
        )
