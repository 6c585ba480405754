"""What this machine has, and which device and backend a launch gets on it.

The choice, in one rule: as many GPUs as ranks, NCCL with one GPU each; fewer GPUs than ranks, the
ranks share them and talk over gloo, through host memory (NCCL refuses two ranks on one GPU); no
GPU, gloo on the CPU. Nothing in a worker depends on it.

What it costs
    Each process that uses a GPU holds a CUDA context there, 300 to 400 MB that the allocator's
    figures do not show (500 MB are reckoned with). A rank holds about 150 MB of host memory of its
    own when forked.
"""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

CONTEXT_BYTES = 500 * 10**6
RANK_BYTES = 150 * 10**6


@dataclass(frozen=True)
class Placement:
    """Where the ranks of a launch run: kind of device, backend, threads for each."""

    device_type: str
    backend: str
    staged: bool
    num_devices: int
    threads: int
    reason: str

    def device_of(self, local_rank: int) -> torch.device:
        """The device of a rank; ranks that share GPUs take them in turn."""
        if self.device_type == "cpu":
            return torch.device("cpu")
        return torch.device("cuda", local_rank % self.num_devices)


def place(local_ranks: int, device: str = "auto") -> Placement:
    """Choose device and backend for `local_ranks` ranks on this machine.

    **Raises** ValueError for an unknown `device`, for "cuda" without a GPU, and where the ranks'
    CUDA contexts alone would fill the GPUs.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device is {device!r}; it can be 'auto', 'cpu' or 'cuda'")
    num_gpus = torch.cuda.device_count()
    if device == "cuda" and num_gpus == 0:
        raise ValueError("device is 'cuda', but this machine shows no GPU; use 'auto' or 'cpu'")
    threads = threads_per_rank(local_ranks)
    if device == "cpu" or num_gpus == 0:
        why = "as asked" if device == "cpu" else "no GPU was found"
        return Placement("cpu", "gloo", False, 0, threads, f"processes on the CPU over gloo: {why}")
    if local_ranks <= num_gpus:
        why = f"one GPU for each of {local_ranks} ranks (of {num_gpus})"
        return Placement("cuda", "nccl", False, num_gpus, threads, f"NCCL: {why}")
    most = num_gpus * (gpu_bytes() // (2 * CONTEXT_BYTES))
    if local_ranks > most:
        raise ValueError(
            f"{local_ranks} ranks on {num_gpus} GPU(s) need {CONTEXT_BYTES / 1e9:.1f} GB each for "
            f"their CUDA contexts alone; at most {most} ranks fit, or use device='cpu'"
        )
    why = f"{local_ranks} ranks share {num_gpus} GPU(s), which NCCL refuses"
    return Placement(
        "cuda", "gloo", True, num_gpus, threads, f"gloo, staged through host memory: {why}"
    )


def check_memory(local_ranks: int) -> None:
    """Refuse a number of ranks that this machine's free memory cannot hold.

    **Raises** ValueError that names the numbers.
    """
    free = available_bytes()
    most = max(1, free // (2 * RANK_BYTES))
    if local_ranks > most:
        raise ValueError(
            f"{local_ranks} ranks need about {local_ranks * RANK_BYTES / 1e9:.1f} GB before they "
            f"hold any data; {free / 1e9:.1f} GB are free here, enough for {most} ranks"
        )


def cores_available() -> int:
    """The cores that this process may use: its affinity, and its control group's quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota = Path("/sys/fs/cgroup/cpu.max")
    if quota.is_file():
        limit, _, period = quota.read_text().strip().partition(" ")
        if limit.isdigit():
            cores = min(cores, max(1, int(limit) // int(period)))
    return cores


def threads_per_rank(local_ranks: int) -> int:
    """Cores divided by ranks, at least 1; the reader's own OMP_NUM_THREADS wins."""
    own = os.environ.get("OMP_NUM_THREADS", "")
    if own.isdigit() and int(own) > 0:
        return int(own)
    return max(1, cores_available() // local_ranks)


def available_bytes() -> int:
    """Host memory that is free for new processes (a control group's limit counts)."""
    if hasattr(os, "sysconf") and sys.platform == "linux":
        fields = dict(
            line.split(":")
            for line in Path("/proc/meminfo").read_text().splitlines()
            if ":" in line
        )
        free = int(fields["MemAvailable"].split()[0]) * 1024
        limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
        if limit.is_file() and limit.read_text().strip().isdigit() and used.is_file():
            free = min(free, int(limit.read_text()) - int(used.read_text()))
        return free
    return 4 * 10**9  # not known here: assume a small machine


def gpu_bytes() -> int:
    """Memory of the first GPU."""
    return torch.cuda.get_device_properties(0).total_memory


def has_bf16_hardware(capability: tuple[int, int]) -> bool:
    """Whether a GPU of this compute capability computes in bf16 (Ampere, 8.0, and later).

    `torch.cuda.is_bf16_supported()` says yes on a T4 too, where bf16 is emulated and slow.
    """
    return capability >= (8, 0)


@dataclass(frozen=True)
class Machine:
    """What `doctor` found."""

    rows: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self.rows)
        return "\n".join(f"{name:<{width}}  {text}" for name, text in self.rows)

    __repr__ = __str__


def doctor(world_size: int = 4) -> Machine:
    """Say what this machine has, what a launch of `world_size` ranks would get, and why."""
    rows = [
        ("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        ("torch", torch.__version__),
        ("cores", f"{cores_available()} for this process"),
        ("host memory", f"{available_bytes() / 1e9:.1f} GB free"),
    ]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        bf16 = "bf16" if has_bf16_hardware((properties.major, properties.minor)) else "no bf16"
        rows.append(
            (f"GPU {index}", f"{properties.name}, {properties.total_memory / 1e9:.0f} GB, {bf16}")
        )
    if not torch.cuda.device_count():
        rows.append(("GPU", "none: every chapter runs on the CPU"))
    try:
        placement = place(world_size)
        rows.append((f"{world_size} ranks", placement.reason))
        rows.append(("threads a rank", str(placement.threads)))
    except ValueError as error:
        rows.append((f"{world_size} ranks", str(error)))
    return Machine(tuple(rows))
