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

On a GPU (`device="cuda"`) PyTorch's allocator is limited too, while the block runs. It counts all
that the process has there, in whole segments of 2 MiB and more, so it may refuse a little earlier;
its error, too, arrives with what is live by kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
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
    operation that passes the limit, or on entry if module and optimizer alone pass it. A
    `torch.OutOfMemoryError` of the allocator arrives as a BudgetExceeded as well.
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
        self._allocator = ExitStack()

    def __enter__(self) -> DeviceBudget:
        super().__enter__()
        try:
            if self._device is not None and self._device.type == "cuda":
                index = self._device.index
                self._allocator.enter_context(_allocator_limited(self.num_bytes, index))
            self._check("module and optimizer")
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, traceback)
        self._allocator.close()
        if isinstance(error, torch.OutOfMemoryError) and not isinstance(error, BudgetExceeded):
            raise self._exceeded("something that is no operation", error) from error

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Run one operation, count what it made, and fail if that is too much."""
        try:
            result = super().__torch_dispatch__(func, types, args, kwargs)
        except BudgetExceeded:  # an outer budget's
            raise
        except torch.OutOfMemoryError as error:
            raise self._exceeded(f"the operation {func}", error) from error
        self._check(f"the operation {func}")
        return result

    def _check(self, what: str) -> None:
        if self._total <= self.num_bytes:
            return
        raise BudgetExceeded(
            f"out of memory: {what} brought the live bytes to {self._total:,}, "
            f"{self._total - self.num_bytes:,} over the budget of {self.num_bytes:,}. "
            f"{self._kinds()}"
        )

    def _exceeded(self, what: str, error: torch.OutOfMemoryError) -> BudgetExceeded:
        return BudgetExceeded(
            f"out of memory: the allocator refused {what}, in a budget of {self.num_bytes:,} "
            f"bytes. {self._kinds()} The allocator says: {error}"
        )

    def _kinds(self) -> str:
        kinds = ", ".join(f"{kind} {size:,}" for kind, size in self.now_by_kind.items() if size)
        return f"Live by kind: {kinds}."


@contextmanager
def _allocator_limited(num_bytes: int, device: int | None) -> Iterator[None]:
    """PyTorch's allocator gives this process no more than `num_bytes` of a GPU (None: current)."""
    memory = torch.cuda.get_device_properties(device).total_memory
    before = getattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 1.0)(device)
    torch.cuda.empty_cache()  # what is cached counts
    torch.cuda.set_per_process_memory_fraction(min(before, num_bytes / memory), device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(before, device)
