"""Pipeline parallelism: the model is cut into stages, and micro-batches pass through them.

Read in this order: `schedule`, `schedules`, `replay`, `simulate`; `stage`, `mail`, `executor`;
`interleaved`, `zero_bubble`; then `asynchronous`, `weight_versions` and `recursion`; `partition`
decides where to cut.
"""

from pedagogy.pipeline.asynchronous import noam, pipedream, pipedream_2bw, pipedream_replicated
from pedagogy.pipeline.batch_norm import DeferredBatchNorm, defer_batch_norm
from pedagogy.pipeline.executor import PipelineRun, run_schedule, split_batch
from pedagogy.pipeline.interleaved import interleaved, interleaved_in_rounds
from pedagogy.pipeline.notation import parse_schedule
from pedagogy.pipeline.partition import (
    LayerCost,
    Plan,
    ReplicatedStage,
    partition,
    partition_replicated,
)
from pedagogy.pipeline.profile import profile_layers
from pedagogy.pipeline.recursion import (
    stashing,
    train_by_recursion,
    two_versions,
    vertical_sync,
)
from pedagogy.pipeline.replay import check_schedule
from pedagogy.pipeline.schedule import Action, Layout, Schedule, schedule_text
from pedagogy.pipeline.schedules import gpipe, gpipe_recomputing, naive, one_f_one_b
from pedagogy.pipeline.simulate import Simulation, Wait, simulate
from pedagogy.pipeline.split import gpt_layers, split_layers
from pedagogy.pipeline.stage import RecomputingStage, SplitStage, Stage
from pedagogy.pipeline.tied import TiedWeight
from pedagogy.pipeline.versions_table import versions_used
from pedagogy.pipeline.weight_versions import (
    StashingStage,
    TwoVersionStage,
    UnstashedStage,
    VerticalSyncStage,
    replica_group,
)
from pedagogy.pipeline.zero_bubble import zero_bubble_h1, zero_bubble_h2

__all__ = [
    "Action",
    "DeferredBatchNorm",
    "LayerCost",
    "Layout",
    "PipelineRun",
    "Plan",
    "RecomputingStage",
    "ReplicatedStage",
    "Schedule",
    "Simulation",
    "SplitStage",
    "Stage",
    "StashingStage",
    "TiedWeight",
    "TwoVersionStage",
    "UnstashedStage",
    "VerticalSyncStage",
    "Wait",
    "check_schedule",
    "defer_batch_norm",
    "gpipe",
    "gpipe_recomputing",
    "gpt_layers",
    "interleaved",
    "interleaved_in_rounds",
    "naive",
    "noam",
    "one_f_one_b",
    "parse_schedule",
    "partition",
    "partition_replicated",
    "pipedream",
    "pipedream_2bw",
    "pipedream_replicated",
    "profile_layers",
    "replica_group",
    "run_schedule",
    "schedule_text",
    "simulate",
    "split_batch",
    "split_layers",
    "stashing",
    "train_by_recursion",
    "two_versions",
    "versions_used",
    "vertical_sync",
    "zero_bubble_h1",
    "zero_bubble_h2",
]
