"""Which gradients travel together.

Why it exists
-------------
One all_reduce for each parameter pays the latency hundreds of times; one for all must wait until
backward has ended. Buckets are between: a bucket leaves as soon as its gradients exist, while
backward computes those of the next.

The rule (PyTorch's DDP uses the same, and a test compares the two)
-------------------------------------------------------------------
* *Last parameter first*: backward produces gradients roughly from the last layer to the first.
* A bucket is closed once it holds `bucket_bytes` *or more*: a parameter is never split, so the
  last one to enter may carry it over the limit.
* The first bucket may be smaller (DDP: 1 MiB), so that the first message leaves early.
* dtypes and devices never mix: a bucket is one buffer. Buckets of several kinds fill side by side
  and are returned in the order in which their first parameter came.

Source: Li et al. 2020, "PyTorch Distributed", section 3.2.3 (25 MB by default).
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

BUCKET_BYTES = 25 * 2**20
FIRST_BUCKET_BYTES = 2**20


def bucket(
    parameters: Iterable[Tensor],
    bucket_bytes: int = BUCKET_BYTES,
    first_bucket_bytes: int | None = None,
) -> list[list[Tensor]]:
    """The parameters in buckets, in reversed order, each parameter whole and in one bucket.

    Without `first_bucket_bytes` all buckets have the same limit; DDP's is `FIRST_BUCKET_BYTES`.
    **Raises** ValueError for a limit below 1, or a parameter that comes twice (a tied one).
    """
    first = bucket_bytes if first_bucket_bytes is None else first_bucket_bytes
    if bucket_bytes < 1 or first < 1:
        raise ValueError(f"bucket limits of {first} and {bucket_bytes} bytes: must be at least 1")
    parameters = list(parameters)[::-1]
    if len({id(p) for p in parameters}) < len(parameters):
        raise ValueError("a parameter comes twice: pass `unique_parameters(...)`")
    buckets: list[list[Tensor]] = []
    filling: dict[tuple, tuple[list[Tensor], int]] = {}  # by kind: the open bucket, its bytes
    past_first = set()
    for parameter in parameters:
        kind = (parameter.dtype, parameter.device)
        if kind not in filling:
            filling[kind] = ([], 0)
            buckets.append(filling[kind][0])
        members, num_bytes = filling[kind]
        members.append(parameter)
        num_bytes += parameter.numel() * parameter.element_size()
        filling[kind] = (members, num_bytes)
        if num_bytes >= (bucket_bytes if kind in past_first else first):
            del filling[kind]
            past_first.add(kind)
    return buckets
