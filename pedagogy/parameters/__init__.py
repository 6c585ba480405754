"""What several techniques do to parameters: flatten, bucket, shard, broadcast, average, clip.

Data parallelism buckets gradients, ZeRO shards them, tensor parallelism clips them over two
groups at once. Each of these is a few lines that are easy to get almost right; they stand here
once, with their tests. What communicates takes the group as its first argument.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pedagogy.parameters.buckets import FIRST_BUCKET_BYTES, bucket
    from pedagogy.parameters.clipping import Part, clip_by_global_norm, global_norm
    from pedagogy.parameters.flat import flatten, unflatten, unique_parameters
    from pedagogy.parameters.gradients import check_dense, fill_gradients, sum_gradients
    from pedagogy.parameters.replicas import add_up, average, broadcast
    from pedagogy.parameters.shards import gather, shard, shard_numel, unshard

__all__ = [
    "FIRST_BUCKET_BYTES",
    "Part",
    "add_up",
    "average",
    "broadcast",
    "bucket",
    "check_dense",
    "clip_by_global_norm",
    "fill_gradients",
    "flatten",
    "gather",
    "global_norm",
    "shard",
    "shard_numel",
    "sum_gradients",
    "unflatten",
    "unique_parameters",
    "unshard",
]

_HOMES = {
    "buckets": ("FIRST_BUCKET_BYTES", "bucket"),
    "clipping": ("Part", "clip_by_global_norm", "global_norm"),
    "flat": ("flatten", "unflatten", "unique_parameters"),
    "gradients": ("check_dense", "fill_gradients", "sum_gradients"),
    "replicas": ("add_up", "average", "broadcast"),
    "shards": ("gather", "shard", "shard_numel", "unshard"),
}


def __getattr__(name: str) -> object:
    """Import a file of this folder when it is first asked for (torch is heavy)."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
