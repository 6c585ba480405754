"""CPU offloading: the device is a cache over a full copy in host memory.

Read in this order: `simulate`, `host_copy`, `parameters` (`values` is about its state dict),
`optimizer`, `activations`.
"""

from pedagogy.measure import BudgetExceeded, DeviceBudget
from pedagogy.offload.activations import offload_activations
from pedagogy.offload.host_copy import HostCopy
from pedagogy.offload.optimizer import OffloadedOptimizer
from pedagogy.offload.parameters import OffloadedModule
from pedagogy.offload.simulate import Offload, simulate_offload, transfers

__all__ = [
    "BudgetExceeded",
    "DeviceBudget",
    "HostCopy",
    "Offload",
    "OffloadedModule",
    "OffloadedOptimizer",
    "offload_activations",
    "simulate_offload",
    "transfers",
]
