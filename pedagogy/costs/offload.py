"""What offloading moves and what it saves: bytes in each tier, and when the link is hidden.

Why it exists
-------------
A device's memory is small, fast and dear; the host's is large, and far away. Offloading is worth it
if two numbers are right: what stays on the device must fit, and the link must carry the rest in the
time that compute takes anyway.

What stays
----------
Adam with mixed precision costs 16 bytes a parameter. Which of them can lie in host memory, with the
least traffic? ZeRO-Offload keeps the 16-bit weights on the device, 2, and moves the rest, 14:
gradients 2, fp32 weights 4, moments 8. Each step 2 bytes go up (gradients) and 2 come down
(weights). Our GPT in fp32, technique by technique, is in `offload_memory`; its names are here too.

When the link is hidden
-----------------------
A byte that comes over the link is good for some FLOPs, the intensity ait. It takes 1 / bw seconds
to come and ait / peak seconds to be used. One after the other:

    efficiency = compute / (compute + link) = ait bw / (ait bw + peak)

    parameters and gradients    ait = sequence x batch
    optimizer states            ait = sequence x batch / 4
    activation checkpoints      ait = 24 x hidden x interval, in layers

With prefetching the longer of the two counts, not the sum: a copy is hidden as soon as
ait bw >= peak, where the formula without overlap says 50 %. Batch and sequence raise the first two
intensities; hidden does not, for it makes weights and FLOPs grow alike.

Units: bytes, seconds, FLOPs. Not modelled: launches, latency of a copy, the CPU's update.
Sources: Ren et al. 2021 (ZeRO-Offload), section 3; Rajbhandari et al. 2021 (ZeRO-Infinity),
section 4.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from pedagogy.costs.compute import gpt_training_flops
from pedagogy.costs.offload_memory import (
    TECHNIQUES,
    gpt_device_bytes,
    gpt_host_bytes,
    gpt_link_bytes,
    gpt_moments,
    layer_copies,
    layers_held,
)

__all__ = [
    "TECHNIQUES",
    "TIERS",
    "Tier",
    "bandwidth_for",
    "efficiency",
    "gpt_device_bytes",
    "gpt_host_bytes",
    "gpt_link_bytes",
    "gpt_moments",
    "hidden_from_batch",
    "intensities",
    "layer_copies",
    "layers_held",
    "zero_offload_bytes",
    "zero_offload_traffic",
]


class Tier(NamedTuple):
    """A memory that a device can use; its speed as the device sees it, one way.

    `dollars_per_gb` is an assumption for the year that `note` names, not a quotation: what lasts is
    the order of magnitude between tiers, and even that not always (DRAM's price rose several times
    over in 2025 and 2026).
    """

    name: str
    capacity_bytes: float
    bytes_per_second: float
    dollars_per_gb: float
    note: str


TIERS = {
    one.name: one
    for one in (
        Tier(
            "HBM",
            80e9,
            2039e9,
            15.0,
            "A100 80 GB, data sheet; price: assumed for 2024, it is not sold apart from the device",
        ),
        Tier(
            "DRAM",
            1e12,
            31.5e9,
            4.0,
            "1 TB over PCIe 4.0 x16, 16 lanes of 16 GT/s, 128b/130b; price: assumed for 2024",
        ),
        Tier(
            "NVMe",
            30.72e12,
            7e9,
            0.1,
            "Micron 9400 Pro on PCIe 4.0 x4, read and write; price: assumed for 2024",
        ),
    )
}


def zero_offload_bytes(num_parameters: int) -> dict[str, dict[str, int]]:
    """Bytes on device and host, by kind, with Adam and mixed precision: 2 M and 14 M.

    **Raises** ValueError for a negative number.
    **Source** Ren et al. 2021 (ZeRO-Offload), section 3.
    """
    count = _not_negative(num_parameters)
    return {
        "device": {"parameters": 2 * count, "gradients": 0, "optimizer_state": 0},
        "host": {"parameters": 0, "gradients": 2 * count, "optimizer_state": 12 * count},
    }


def zero_offload_traffic(num_parameters: int) -> dict[str, int]:
    """Bytes over the link in a step: weights down, gradients up, 2 M each.

    **Raises** and **Source** as `zero_offload_bytes`.
    """
    count = _not_negative(num_parameters)
    return {"to_device": 2 * count, "to_host": 2 * count}


def intensities(sequence: int, batch: int, hidden: int, interval: int = 1) -> dict[str, float]:
    """FLOPs for each byte moved, by what is moved, in 16 bits; checkpoints every `interval` layers.

    **Raises** ValueError for a size below 1.
    **Source** Rajbhandari et al. 2021 (ZeRO-Infinity), section 4.1.
    """
    sizes = {"sequence": sequence, "batch": batch, "hidden": hidden, "interval": interval}
    if min(sizes.values()) < 1:
        raise ValueError(f"{sizes}: must be 1 or more")
    tokens = sequence * batch
    return {
        "parameters and gradients": tokens,
        "optimizer states": tokens / 4,
        "activation checkpoints": 24 * hidden * interval,
    }


def efficiency(intensity: float, bytes_per_second: float, flops_per_second: float) -> float:
    """The share of time in which the device computes if every copy is waited for.

    ait bw / (ait bw + peak).
    **Raises** ValueError unless all three are positive.
    **Source** Rajbhandari et al. 2021 (ZeRO-Infinity), section 4.
    """
    _positive(intensity, bytes_per_second, flops_per_second)
    fed = intensity * bytes_per_second
    return fed / (fed + flops_per_second)


def bandwidth_for(share: float, intensity: float, flops_per_second: float) -> float:
    """The bytes a second at which `efficiency` is `share`: share / (1 - share) x peak / ait.

    **Raises** ValueError unless 0 < share < 1 and the others are positive.
    """
    _positive(share, intensity, flops_per_second)
    if share >= 1:
        raise ValueError(f"an efficiency of {share}: must be below 1, which no link reaches")
    return share / (1 - share) * flops_per_second / intensity


def hidden_from_batch(
    hidden: int,
    sequence: int,
    flops_per_second: float,
    bytes_per_second: float,
    bytes_per_element: int = 2,
) -> int:
    """The smallest batch whose forward of a layer takes at least as long as copying that layer.

    b (24 s h^2 + 4 s^2 h) / peak >= (12 h^2 + 13 h) x size / bw. Backward takes twice as long.
    **Raises** ValueError unless all are positive.
    """
    _positive(hidden, sequence, flops_per_second, bytes_per_second, bytes_per_element)
    copy_seconds = (12 * hidden**2 + 13 * hidden) * bytes_per_element / bytes_per_second
    forward_flops = gpt_training_flops(1, hidden, sequence, 1, vocabulary=0) // 3
    return max(1, math.ceil(copy_seconds * flops_per_second / forward_flops))


def _not_negative(num_parameters: int) -> int:
    if num_parameters < 0:
        raise ValueError(f"{num_parameters} parameters: must be 0 or more")
    return num_parameters


def _positive(*numbers: float) -> None:
    if min(numbers) <= 0:
        raise ValueError(f"{numbers}: must all be positive")
