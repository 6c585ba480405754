"""Data parallelism: every rank has the whole model and a part of the batch.

Read in this order: `synchronous`, `buckets`, `data_parallel`; then `horovod` and `negotiation`,
`uneven`, `batch_norm`; then `asynchronous` and `backup_workers`; `distributions` looks on.
"""

from pedagogy.data_parallel.asynchronous import Record, Update, replay, train_asynchronously
from pedagogy.data_parallel.backup_workers import (
    BackupRecord,
    replay_backup,
    train_with_backup_workers,
)
from pedagogy.data_parallel.batch_norm import SyncBatchNorm, convert_batch_norm
from pedagogy.data_parallel.buckets import average_in_buckets, make_buckets
from pedagogy.data_parallel.data_parallel import DataParallel
from pedagogy.data_parallel.distributions import GradientDistributions, gradient_distributions
from pedagogy.data_parallel.horovod import DistributedOptimizer, broadcast_optimizer_state, fuse
from pedagogy.data_parallel.negotiation import agree_on_order, negotiate
from pedagogy.data_parallel.synchronous import (
    average_gradients,
    broadcast_parameters,
    train_synchronously,
)
from pedagogy.data_parallel.uneven import (
    Split,
    average_gradients_by_count,
    dropped,
    joined,
    padded,
    scaled_by_count,
    until_all_are_done,
)
from pedagogy.parameters import sum_gradients

__all__ = [
    "BackupRecord",
    "DataParallel",
    "DistributedOptimizer",
    "GradientDistributions",
    "Record",
    "Split",
    "SyncBatchNorm",
    "Update",
    "agree_on_order",
    "average_gradients",
    "average_gradients_by_count",
    "average_in_buckets",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "convert_batch_norm",
    "dropped",
    "fuse",
    "gradient_distributions",
    "joined",
    "make_buckets",
    "negotiate",
    "padded",
    "replay",
    "replay_backup",
    "scaled_by_count",
    "sum_gradients",
    "train_asynchronously",
    "train_synchronously",
    "train_with_backup_workers",
    "until_all_are_done",
]
