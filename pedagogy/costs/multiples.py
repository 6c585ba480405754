"""What must be a multiple of what: ranks divide sizes, rounds divide counts.

Several techniques cut something into equal parts and refuse what does not fit. All of them say the
same: which number, which divisor, and the nearest numbers that would fit.
"""

from __future__ import annotations


def nearest_multiples(number: int, unit: int) -> str:
    """The multiples of `unit` next to a number that is none, above 0, as text.

    >>> nearest_multiples(9, 4), nearest_multiples(3, 4)
    ('8 or 12', '4')
    """
    below = number // unit * unit
    return " or ".join(str(near) for near in (below, below + unit) if near > 0)


def check_divides(ranks: int, **sizes: int) -> None:
    """The ranks divide every size: to be asked before a launch, where no rank stands yet.

    **Raises** ValueError that names the first size that they do not divide, and its neighbours.
    """
    if ranks < 1:
        raise ValueError(f"{ranks} ranks: must be 1 or more")
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} is {size}: must be 1 or more")
        if size % ranks:
            raise ValueError(
                f"{name} is {size}, which {ranks} ranks do not divide; "
                f"{nearest_multiples(size, ranks)} would do"
            )
