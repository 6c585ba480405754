"""The link between a device and its host memory: a copy engine that works while compute goes on.

The problem
    Host memory is large and far away. A copy that compute waits for costs its whole length; one
    that was started early enough costs nothing. So a link only *starts* copies, and says when they
    are done.

How it works
    A link has two directions, each with an engine of its own that copies in the order in which it
    was asked: `to_host` and `to_device`. Both return a `Copy`, which can be waited for in two ways:

        wait()      compute that is started from now on finds the data
        finish()    the copy is over: the host may read the data, or overwrite what it came from

    On a GPU an engine is a stream, and `wait` makes the compute stream wait, not the host; host
    buffers are pinned, without which a copy is not asynchronous at all. A host that reads after
    `wait` alone reads what was there before: that is why there are two.

    A laptop has no second memory. There an engine is a thread, and both ends lie in host memory;
    a copy takes `nbytes / bytes_per_second` by sleeping, as `Pace` does for compute, and the bytes
    move at its *end*. What is read too early, or overwritten too soon, is therefore surely wrong.

    Work of the host (an optimizer's update) runs by `on_host`, in a thread of its own. What is made
    in any of these threads is host memory: a memory meter counts what the training thread makes.

What real systems do differently
    They keep a fixed set of pinned buffers and copy in pieces; pinning is slow, and takes memory
    from the whole machine.

Sources: CUDA C++ Programming Guide, "Asynchronous Concurrent Execution"; Ren et al. 2021
(ZeRO-Offload), section 4.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

from pedagogy.ranks.trace import Event, Trace

Result = TypeVar("Result")
TO_DEVICE, TO_HOST = "to_device", "to_host"
_LANES = {TO_DEVICE: 1, TO_HOST: 2}  # in a trace the device computes on lane 0


class Copy:
    """A copy under way; `wait` and `finish` return the tensor that it fills."""

    def __init__(self, wait: Callable[[], Tensor], finish: Callable[[], Tensor]) -> None:
        self.wait = wait
        self.finish = finish


class Link:
    """A link of a CPU that plays the device: one thread for each direction, and the host's.

    `bytes_per_second` None: as fast as memory is. `to_device_bytes` and `to_host_bytes` count.
    The threads end with `close`, or when nobody holds the link any more.
    **Raises** ValueError unless the speed is positive.
    """

    def __init__(self, bytes_per_second: float | None = None) -> None:
        if bytes_per_second is not None and bytes_per_second <= 0:
            raise ValueError(f"a link of {bytes_per_second} bytes per second: must be positive")
        self.bytes_per_second = bytes_per_second
        self.to_device_bytes = self.to_host_bytes = 0
        self._engines = {way: ThreadPoolExecutor(1, f"link {way}") for way in _LANES}
        self._free_at = dict.fromkeys(_LANES, 0.0)
        self._host = ThreadPoolExecutor(1, "host")
        self._events: list[Event] = []

    def to_host(self, tensor: Tensor, into: Tensor | None = None, name: str = "") -> Copy:
        """Start to copy a device's tensor into host memory: into a new buffer, or an old one."""
        self.to_host_bytes += tensor.nbytes
        return self._start(TO_HOST, tensor.detach(), into, name)

    def to_device(self, tensor: Tensor, into: Tensor, name: str = "") -> Copy:
        """Start to fill a tensor that the device has set aside from one in host memory."""
        self.to_device_bytes += tensor.nbytes
        return self._start(TO_DEVICE, tensor.detach(), into, name)

    def on_host(self, function: Callable[..., Result], *inputs: Any) -> Result:
        """What the host computes meanwhile, in host memory; waits for the result."""
        return self._host.submit(function, *inputs).result()

    @property
    def trace(self) -> Trace:
        """The copies so far: lane 1 to the device, lane 2 to the host; clock: perf_counter."""
        return Trace(self._events)

    def close(self) -> None:
        """End the threads, when what they were given is done."""
        for engine in (*self._engines.values(), self._host):
            engine.shutdown()

    def _start(self, way: str, source: Tensor, into: Tensor | None, name: str) -> Copy:
        asked = time.perf_counter(), source._version
        copying = self._engines[way].submit(self._copy, way, source, into, name, *asked)
        return Copy(copying.result, copying.result)

    @torch.no_grad()
    def _copy(
        self, way: str, source: Tensor, into: Tensor | None, name: str, asked: float, version: int
    ) -> Tensor:
        """In the engine's thread; the bytes move at the end of the copy's time."""
        start = time.perf_counter()
        if self.bytes_per_second is not None:
            start = max(asked, self._free_at[way])
            self._free_at[way] = start + source.nbytes / self.bytes_per_second
            time.sleep(max(0.0, self._free_at[way] - time.perf_counter()))
        into = torch.empty_like(source) if into is None else into
        into.copy_(source)
        if source._version != version:
            raise RuntimeError(
                f"a tensor of {source.nbytes} bytes was changed while it was copied {way}: wait "
                "until the copy is finished before its source is used for anything else"
            )
        end = time.perf_counter()
        self._events.append(Event(_LANES[way], way, name, start, end, source.nbytes))
        return into


class CudaLink(Link):
    """The link of a real GPU: a stream for each direction; the speed is what the bus gives."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self._streams = {way: torch.cuda.Stream(device) for way in _LANES}
        self._started = time.perf_counter()
        self._start_event = self._mark(torch.cuda.current_stream(device))
        self._spans: list[tuple[str, str, int, torch.cuda.Event, torch.cuda.Event]] = []

    @property
    def trace(self) -> Trace:
        """The copies so far, timed by the device."""
        torch.cuda.synchronize(self.device)
        milliseconds = self._start_event.elapsed_time
        return Trace(
            Event(
                _LANES[way],
                way,
                name,
                self._started + milliseconds(start) / 1e3,
                self._started + milliseconds(end) / 1e3,
                nbytes,
            )
            for way, name, nbytes, start, end in self._spans
        )

    def _start(self, way: str, source: Tensor, into: Tensor | None, name: str) -> Copy:
        if into is None:
            into = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
        stream, compute = self._streams[way], torch.cuda.current_stream(self.device)
        stream.wait_stream(compute)  # the source is written, the target no longer read
        with torch.cuda.stream(stream):
            start = self._mark(stream)
            into.copy_(source, non_blocking=True)
            end = self._mark(stream)
        on_device = source if way == TO_HOST else into
        on_device.record_stream(stream)  # its memory is not given away before the copy is done
        self._spans.append((way, name, source.nbytes, start, end))

        def wait() -> Tensor:
            torch.cuda.current_stream(self.device).wait_event(end)
            return into

        def finish() -> Tensor:
            end.synchronize()
            return into

        return Copy(wait, finish)

    @staticmethod
    def _mark(stream: torch.cuda.Stream) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event


def open_link(device: torch.device | str = "cpu", bytes_per_second: float | None = None) -> Link:
    """The link between this device and host memory; a speed can be chosen on a CPU only."""
    device = torch.device(device)
    if device.type == "cuda" and bytes_per_second is not None:
        raise ValueError(f"{device} has a real link: its speed cannot be set")
    return CudaLink(device) if device.type == "cuda" else Link(bytes_per_second)


def host_buffer(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Room in host memory for a tensor; pinned where the tensor is on a GPU."""
    return torch.empty(tensor.shape, dtype=dtype or tensor.dtype, pin_memory=tensor.is_cuda)
