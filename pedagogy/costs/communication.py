"""What an all_reduce costs: bytes sent, seconds, and which algorithm wins at which size.

Why it exists
-------------
Each step of data parallelism ends in an all_reduce over all gradients. There are several ways to
do it; they give the same sum and differ in how many messages follow each other (latency) and how
many bytes cross the busiest link (bandwidth).

The alpha-beta model
--------------------
A message of n bytes takes alpha + beta n seconds: alpha is what any message costs, however small,
beta the seconds for one byte. Messages in opposite directions, and between different pairs, do not
disturb each other. The additions are taken as free. With N ranks and k = ceil(log2 N):

| algorithm | seconds | busiest rank sends | all links carry |
|---|---|---|---|
| naive | 2(N-1) (alpha + n beta) | (N-1) n | 2(N-1) n |
| parameter_server | 2N (alpha + n beta) | N n (the server) | 2N n |
| tree | 2k (alpha + n beta) | k n | 2(N-1) n |
| halving_doubling | 2 log2 P alpha + 2(P-1)/P n beta | 2(P-1)/P n | 2(N-1) n |
| ring | 2(N-1) alpha + 2(N-1)/N n beta | 2(N-1)/N n | 2(N-1) n |

*naive*: all send to rank 0, which adds and sends the sum back, one message after another.
*parameter_server*: the same with a server that is none of the N workers.
*tree*: a binomial tree adds up towards rank 0 and a second one broadcasts.
*halving_doubling*: partners at distance P/2, P/4, ... swap halves, then the way back; P is the
largest power of two up to N. If N > P, the N - P ranks beyond it first hand their n bytes to a
partner and get the sum back at the end: two messages of n more, of which the partner sends one.
*ring*: reduce_scatter and all_gather in N - 1 steps each, pieces of n/N bytes.

Four of the five move the same bytes in total. What differs is whose link carries them: that of
a server or of rank 0 grows with N, a rank of a ring sends less than 2 n for any N.

Sources: Thakur, Rabenseifner, Gropp 2005; Patarasuk and Yuan 2009; bus-bandwidth factors from the
documentation of nccl-tests. Each count can be checked by counting messages, and a test does.
"""

from __future__ import annotations

import math

from pedagogy.costs.zero import zero_bytes_sent as zero_bytes_sent

ALGORITHMS = ("ring", "tree", "halving_doubling", "naive", "parameter_server")

_BUS_FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
}


def ring_all_reduce_bytes(num_bytes: int, ranks: int) -> float:
    """Bytes that each rank of a ring sends: 2 (N-1)/N n, less than 2 n for any N.

    Exact for each rank where N divides the number of elements, else the mean over ranks.
    **Raises** ValueError for a negative size or no rank.
    """
    return busiest_rank_bytes(num_bytes, ranks, "ring")


def busiest_rank_bytes(num_bytes: int, ranks: int, algorithm: str = "ring") -> float:
    """Bytes that the busiest rank (or the server) sends in one all_reduce.

    **Raises** ValueError for a negative size, no rank or an unknown algorithm.
    """
    _check(num_bytes, ranks, algorithm)
    core = _power_of_two_up_to(ranks)
    shares = {
        "ring": 2 * (ranks - 1) / ranks,
        "tree": _tree_depth(ranks),
        "halving_doubling": 2 * (core - 1) / core + (1 if core < ranks else 0),
        "naive": ranks - 1,
        "parameter_server": ranks,
    }
    return shares[algorithm] * num_bytes


def total_bytes(num_bytes: int, ranks: int, algorithm: str = "ring") -> int:
    """Bytes that all links carry together in one all_reduce.

    **Raises** ValueError for a negative size, no rank or an unknown algorithm.
    """
    _check(num_bytes, ranks, algorithm)
    return 2 * num_bytes * (ranks if algorithm == "parameter_server" else ranks - 1)


def all_reduce_seconds(
    num_bytes: float, ranks: int, alpha: float, beta: float, algorithm: str = "ring"
) -> float:
    """Seconds of one all_reduce: `alpha` for each message in turn, `beta` for each byte in turn.

    Algorithm is one of "ring", "tree", "halving_doubling", "naive", "parameter_server".
    **Raises** ValueError for a negative size, no rank or an unknown algorithm.
    """
    _check(num_bytes, ranks, algorithm)
    messages, copies = _in_turn(ranks, algorithm)
    return messages * alpha + copies * num_bytes * beta


def crossover_bytes(
    ranks: int, alpha: float, beta: float, small: str = "tree", large: str = "ring"
) -> float:
    """The size from which algorithm `large` is at least as fast as `small`.

    0 if it always is, infinity if it never is. Both costs are straight lines in the size; for ring
    against tree they meet at n = (N-1-k) alpha / ((k - (N-1)/N) beta).
    **Raises** ValueError for no rank or an unknown algorithm.
    """
    _check(0, ranks, small)
    _check(0, ranks, large)
    messages_small, copies_small = _in_turn(ranks, small)
    messages_large, copies_large = _in_turn(ranks, large)
    extra_seconds = (messages_large - messages_small) * alpha
    saved_seconds_per_byte = (copies_small - copies_large) * beta
    if extra_seconds <= 0 and saved_seconds_per_byte >= 0:
        return 0.0
    if saved_seconds_per_byte <= 0:
        return math.inf
    return extra_seconds / saved_seconds_per_byte


def bus_bandwidth_factor(collective: str, ranks: int) -> float:
    """Bus bandwidth / (bytes / seconds): what makes collectives comparable with the link's speed.

    **Raises** ValueError for an unknown collective or no rank.
    """
    _check(0, ranks, "ring")
    if collective not in _BUS_FACTORS:
        choices = ", ".join(map(repr, _BUS_FACTORS))
        raise ValueError(f"unknown collective {collective!r}: choose one of {choices}")
    return _BUS_FACTORS[collective](ranks)


def scaling_efficiency(
    ranks: int,
    compute_seconds: float,
    num_bytes: float,
    alpha: float,
    beta: float,
    overlap_seconds: float = 0.0,
    algorithm: str = "ring",
) -> float:
    """Throughput of N ranks / (N x throughput of one), each rank keeping its batch (weak scaling).

    compute / (compute + exposed communication), where up to `overlap_seconds` of communication
    hide behind backward: at most the length of backward, less its first bucket.
    **Raises** ValueError if nothing is computed, or more than the computation is to overlap.
    """
    if compute_seconds <= 0 or not 0 <= overlap_seconds <= compute_seconds:
        raise ValueError(
            f"compute {compute_seconds} s and overlap {overlap_seconds} s: "
            "compute must be positive, and overlap between 0 and compute"
        )
    communication = all_reduce_seconds(num_bytes, ranks, alpha, beta, algorithm)
    return compute_seconds / (compute_seconds + max(0.0, communication - overlap_seconds))


def _in_turn(ranks: int, algorithm: str) -> tuple[int, float]:
    """Messages, and copies of the tensor, that follow each other on the longest path."""
    depth, core = _tree_depth(ranks), _power_of_two_up_to(ranks)
    folded = 2 if core < ranks else 0
    return {
        "ring": (2 * (ranks - 1), 2 * (ranks - 1) / ranks),
        "tree": (2 * depth, 2 * depth),
        "halving_doubling": (2 * _tree_depth(core) + folded, 2 * (core - 1) / core + folded),
        "naive": (2 * (ranks - 1), 2 * (ranks - 1)),
        "parameter_server": (2 * ranks, 2 * ranks),
    }[algorithm]


def _tree_depth(ranks: int) -> int:
    """ceil(log2 N), in whole numbers."""
    return (ranks - 1).bit_length()


def _power_of_two_up_to(ranks: int) -> int:
    """The largest power of two that is not above N."""
    return 1 << (ranks.bit_length() - 1)


def _check(num_bytes: float, ranks: int, algorithm: str) -> None:
    if num_bytes < 0 or ranks < 1:
        raise ValueError(
            f"{num_bytes} bytes on {ranks} ranks: bytes must be 0 or more, ranks 1 or more"
        )
    if algorithm not in ALGORITHMS:
        choices = ", ".join(map(repr, ALGORITHMS))
        raise ValueError(f"unknown algorithm {algorithm!r}: choose one of {choices}")
