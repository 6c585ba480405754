"""What a technique should cost, in closed form: memory, communication, compute; and what papers
printed, as data.

Nothing here imports torch. Every formula is held to something else by a test: the memory formulas
to the memory meter, the FLOPs to PyTorch's counter, the parameter counts to published models.
"""

from __future__ import annotations

from pedagogy.costs import (
    accumulation,
    activations,
    communication,
    compression,
    compute,
    memory,
    moe,
    offload,
    optimizers,
    pipeline,
    pipeline_batch,
    pipeline_memory,
    precision,
    published,
    recompute,
)

__all__ = [
    "accumulation",
    "activations",
    "communication",
    "compression",
    "compute",
    "memory",
    "moe",
    "offload",
    "optimizers",
    "pipeline",
    "pipeline_batch",
    "pipeline_memory",
    "precision",
    "published",
    "recompute",
]
