"""What must be true of a tensor before it may leave a rank.

The problem
    gloo sends the raw storage that lies behind a tensor. A column of a matrix, a transposed view,
    a buffer of the wrong length or type: it takes them all, reports nothing, and the numbers that
    arrive are wrong. NCCL refuses some of these and not others.

How it works
    `Wire` turns any tensor into what the transport can carry (dense memory, on a device that the
    backend can read) and turns what arrived back. Where ranks share a GPU the backend is gloo,
    which cannot read GPU memory as NCCL does: tensors are then *staged*, copied to pinned host
    memory, sent, and copied back. A message carries a header with its shape and type, and before a
    collective the ranks compare a digest of what they are about to do.

What it costs
    One copy where the tensor was not dense, two where it is staged; a digest of 8 bytes from each
    rank before each collective of the checked forms. The forms whose names end in an underscore do
    neither: they are for speed.

What real systems do differently
    torch.distributed has this check in a debug mode (TORCH_DISTRIBUTED_DEBUG=DETAIL), which
    compares shapes before each collective.
"""

from __future__ import annotations

import hashlib

import torch

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip
HEADER_LENGTH = 16
MAX_DIMS = HEADER_LENGTH - 3
MAGIC = 0x7065646167


class Wire:
    """Carries tensors between `device` and the transport; `staged` goes through host memory.

    `staged` is given, not found out: a group is told that its backend cannot carry its device's
    tensors. On a machine without a GPU the staging path can therefore run, and be tested, as well.
    """

    def __init__(self, device: torch.device, staged: bool = False) -> None:
        self.device = device
        self.staged = staged
        self.carrier = torch.device("cpu") if staged else device
        self.staged_bytes = 0  # copied through host memory so far, both ways

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised dense tensor that the transport can fill."""
        pinned = self.staged and self.device.type == "cuda"
        return torch.empty(shape, dtype=dtype, device=self.carrier, pin_memory=pinned)

    def copy(self, x: torch.Tensor) -> torch.Tensor:
        """A dense copy of `x` that the transport may read and write."""
        wire = self.empty(tuple(x.shape), x.dtype)
        wire.copy_(x.detach())
        if self.staged:
            self.staged_bytes += wire.nbytes
        return wire

    def readable(self, x: torch.Tensor) -> torch.Tensor:
        """`x` itself where the transport can read it as it is, else a dense copy."""
        x = x.detach()
        lazy = x.is_conj() or x.is_neg()  # what memory holds is not what the tensor says
        if not self.staged and x.device == self.carrier and x.is_contiguous() and not lazy:
            return x
        return self.copy(x)

    def arrived(self, wire: torch.Tensor) -> torch.Tensor:
        """What the transport delivered, on this rank's device."""
        if not self.staged:
            return wire
        self.staged_bytes += wire.nbytes
        return wire.to(self.device, copy=True)


def check_dtype(x: torch.Tensor) -> None:
    """**Raises** ValueError for a dtype that the transport lacks."""
    if x.dtype not in DTYPES:
        raise ValueError(f"cannot send {x.dtype}; the dtypes that can be sent: {DTYPES}")


def make_header(x: torch.Tensor) -> torch.Tensor:
    """The shape and dtype of `x` as 16 integers.

    **Raises** ValueError for a dtype or a number of dimensions that a header cannot hold.
    """
    check_dtype(x)
    if x.dim() > MAX_DIMS:
        raise ValueError(f"cannot send a tensor of {x.dim()} dimensions; at most {MAX_DIMS}")
    fields = [MAGIC, DTYPES.index(x.dtype), x.dim(), *x.shape]
    return torch.tensor(fields + [0] * (HEADER_LENGTH - len(fields)), dtype=torch.int64)


def read_header(header: torch.Tensor, source: int) -> tuple[tuple[int, ...], torch.dtype]:
    """The shape and dtype that a header announces.

    **Raises** ValueError where what arrived is no header: the sender used `send_`, without one.
    """
    magic, dtype, dims, *shape = header.tolist()
    if magic != MAGIC:
        raise ValueError(
            f"what rank {source} sent has no header: it was sent by send_, isend_ or exchange. "
            "Receive it with recv_, irecv_ or exchange, or send it with send"
        )
    return tuple(shape[:dims]), DTYPES[dtype]


def describe(kind: str, tensors: list[torch.Tensor], *details: object) -> str:
    """One line that two ranks can compare: what is done, with which shapes and types."""
    shapes = ", ".join(f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}" for x in tensors)
    return " ".join([kind, *map(str, details), f"of {shapes}" if tensors else ""]).strip()


def digest(text: str) -> int:
    """63 bits of a hash of `text`, as an integer that fits an int64 tensor."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
