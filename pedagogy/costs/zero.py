"""ZeRO's ladder on paper: what a rank holds of the model states, and what it sends.

Why it exists
-------------
Data parallelism keeps the model states N times. Each stage of ZeRO gives every rank 1/N of one
more part. With 2 bytes of weight, 2 of gradient and K = 12 of fp32 copy and moments, for Psi
parameters on N ranks:

    0   all on every rank           (2 + 2 + K) Psi
    1   P_os, optimizer states      (2 + 2) Psi + K Psi / N
    2   P_os+g, gradients too       2 Psi + (2 + K) Psi / N
    3   P_os+g+p, parameters too    (2 + 2 + K) Psi / N

"4 times, 8 times, N times less" are the limits for many ranks: at N = 8 it is 2.9, 4.3 and 8.

What is sent
------------
A reduce_scatter or an all_gather of Psi values costs each rank (N-1)/N Psi. Stages 0 to 2 need one
of each (an all_reduce is both); stage 3 gathers the parameters twice, for forward and for backward,
and scatters the gradients: 3.

Units: bytes, GB is 10^9. Source: Rajbhandari et al. 2020, sections 5 and 7.
"""

from __future__ import annotations

STAGES = (0, 1, 2, 3)


def zero_bytes(num_parameters: float, ranks: int, stage: int, optimizer_bytes: float = 12) -> float:
    """Bytes of model states on one rank; `optimizer_bytes` is K.

    **Raises** ValueError for another stage, no rank or a negative number.
    """
    _check(num_parameters, ranks, stage)
    shared = (0, optimizer_bytes, 2 + optimizer_bytes, 4 + optimizer_bytes)[stage]
    return num_parameters * (4 + optimizer_bytes - shared + shared / ranks)


def zero_bytes_sent(
    num_parameters: float, ranks: int, stage: int, bytes_per_parameter: float = 2
) -> float:
    """Bytes that one rank sends in a step. **Raises** as `zero_bytes`."""
    _check(num_parameters, ranks, stage)
    volumes = 3 if stage == 3 else 2
    return volumes * num_parameters * bytes_per_parameter * (ranks - 1) / ranks


def _check(num_parameters: float, ranks: int, stage: int) -> None:
    if stage not in STAGES:
        raise ValueError(f"stage {stage}: choose one of {', '.join(map(str, STAGES))}")
    if num_parameters < 0 or ranks < 1:
        raise ValueError(f"{num_parameters} parameters on {ranks} ranks: 0 or more, 1 or more")
