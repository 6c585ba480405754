"""Bytes that a process wrote, as the operating system counts them.

A trace says what an algorithm should send; this counter knows nothing of algorithms. Linux adds up
the arguments of every write call in `/proc/self/io` (`wchar`): sockets, pipes and files, for all
threads of the process. What travels through shared memory or from one GPU to another is no write.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

COUNTER = Path("/proc/self/io")


def bytes_written() -> int | None:
    """Bytes that this process has written so far; None where the system does not count them."""
    if not COUNTER.exists():
        return None
    return int(COUNTER.read_text().split("wchar: ")[1].split()[0])


def written_by(call: Callable[[], object]) -> int | None:
    """Bytes that this process writes while `call` runs; None where they are not counted.

    Other threads count too: have the ranks wait in a barrier before, so that nothing else runs.
    """
    before = bytes_written()
    call()
    after = bytes_written()
    return None if before is None or after is None else after - before
