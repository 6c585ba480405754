"""Chapter 02b: what is asked before anything runs."""

from __future__ import annotations

from pedagogy.costs.pipeline import in_flight
from pedagogy.costs.pipeline_memory import pipedream_weight_versions
from pedagogy.exercises.chapter02b_gradients import find_wrong_gradient, recorded
from pedagogy.exercises.prediction import Prediction
from pedagogy.exercises.registry import register
from pedagogy.pipeline import noam, partition_replicated, pipedream
from pedagogy.pipeline.versions_table import versions_used
from pedagogy.pipeline.vgg16 import vgg16_layers

NOAM = Prediction(
    name="noam_2_1_1",
    chapter="02b",
    question="Stage 0 has 2 replicas, stages 1 and 2 have one rank each: how many minibatches does "
    "each replica of stage 0 have in flight?",
    key=lambda: noam([2, 1, 1]),
    tolerance=0.0,
    mistakes=[
        (4, "that is one for each rank, and two replicas share them."),
        (3, "that is the number of stages; count ranks, and divide by the replicas."),
        (1, "then the ranks behind would wait: 4 ranks must be kept busy by 2."),
        (8, "that would be more than one for each rank of the pipeline."),
    ],
    because="4 ranks / 2 replicas of the input stage, rounded up.",
)

VERSIONS = Prediction(
    name="versions_kept",
    chapter="02b",
    question="4 stages, weight stashing: how many versions of its weights does stage 0 keep?",
    key=lambda: pipedream_weight_versions(0, 4),
    tolerance=0.0,
    mistakes=[
        (3, "three minibatches came forward before; with the newest it is one more."),
        (1, "that is what the last stage keeps: its backward comes right after its forward."),
        (2, "two are enough where several micro-batches share an update; here each has its own."),
        (5, "a version is dropped when the last minibatch that uses it has come back."),
        (10, "that is all stages together: 4 + 3 + 2 + 1."),
    ],
    because="One for each minibatch in flight: p - s, so 4, 3, 2 and 1.",
)

STALE = Prediction(
    name="stale_updates",
    chapter="02b",
    question="4 stages, no stashing, in the steady state: stage 0's backward uses weights that are "
    "how many updates newer than those of its forward?",
    key=lambda: max(find_wrong_gradient(recorded(pipedream(4, 8))).values()),
    tolerance=0.0,
    mistakes=[
        (4, "four minibatches are in flight; the one that comes back has not updated yet."),
        (0, "that is true of the last stage, or with stashing."),
        (1, "that is stage 2, next to the last."),
        (2, "that is stage 1."),
    ],
    because="p - 1 - s others come back in between, and each makes an update.",
)

MEMORY = Prediction(
    name="two_versions",
    chapter="02b",
    question="4 stages with 1 GB of weights each: how many GB of weight versions do all of them "
    "keep, with stashing and with 2BW? A list of two.",
    key=lambda: [sum(pipedream_weight_versions(stage, 4) for stage in range(4)), 2 * 4],
    tolerance=0.0,
    mistakes=[
        ([16, 8], "only stage 0 keeps 4 versions; the last stage keeps one."),
        ([4, 2], "that is stage 0; all four were asked for."),
        (
            [4, 8],
            "4 is stage 0 with stashing; add the other three stages, as you did for 2BW.",
        ),
        ([10, 4], "2BW keeps two versions on every stage, the last one, too."),
        ([10, 2], "2BW keeps two versions on each of the 4 stages."),
        ([8, 10], "stashing was asked for first."),
        ([6, 4], "the newest version counts, too."),
    ],
    because="4 + 3 + 2 + 1 against 2 + 2 + 2 + 2; what 2BW spares is stage 0, which is fullest.",
)

UNDER_WAY = Prediction(
    name="under_way",
    chapter="02b",
    question="4 stages, a forward takes 1 unit and a backward 2: how many minibatches must stage 0 "
    "let in before the first one comes back, so that nobody waits from then on?",
    key=lambda: in_flight("pipedream", 0, 4, 12),
    tolerance=0.0,
    mistakes=[
        (1, "then one rank works at a time, and three wait."),
        (2, "two keep two of four ranks busy."),
        (3, "a round trip takes 12 units, three minibatches fill 9 of them on each rank."),
        (12, "that is the round trip in units; a minibatch keeps stage 0 busy for 3 of them."),
        (8, "the others queue: a round trip takes 12 units, and each fills 3 of them."),
    ],
    because="A round trip takes 4 x 3 units, and a minibatch keeps each stage busy for 3.",
)


def _kept_by_the_last_stage() -> int:
    return versions_used(pipedream(4, 12), "vertical sync").peak[-1]


SYNCED = Prediction(
    name="vertical_sync_versions",
    chapter="02b",
    question="4 stages, vertical sync: how many versions of its weights does the last stage keep?",
    key=_kept_by_the_last_stage,
    tolerance=0.0,
    mistakes=[
        (1, "that is stashing's number: now its newest version is asked for only later."),
        (2, "two are kept where the version asked for is one older than the newest; here it is 3."),
        (3, "the version asked for is 3 older than the newest: both, and those between, are kept."),
        (10, "that is stashing, all stages together."),
        (16, "that is all four stages together."),
    ],
    because="The version that stage 0 met is 3 older; until it is asked for, all since are kept.",
)


def _machines_without_dense_layers() -> int:
    layers = vgg16_layers()
    stages = partition_replicated(layers, 16, bandwidth=10e9 / 8).stages
    return sum(stage.replicas for stage in stages if stage.last <= len(layers) - 3)


CONVOLUTIONS = Prediction(
    name="vgg_convolutions",
    chapter="02b",
    question="VGG-16 on 16 machines at 10 Gbit/s: how many of them should hold convolutions alone, "
    "and none of the three dense layers?",
    key=_machines_without_dense_layers,
    tolerance=0.0,
    mistakes=[
        (0, "then all average the dense layers' weights: that is data parallelism."),
        (16, "somebody must hold the dense layers."),
        (13, "one for each convolution is a straight pipeline, as fast as its slowest layer."),
        (8, "half of the machines would hold layers that hardly take any time."),
        (14, "two machines for the dense layers must average weights that one simply keeps."),
        (1, "the convolutions take nearly all of the time: they are what to share."),
    ],
    because="One machine computes the dense layers easily, and need not average their weights.",
)

register(UNDER_WAY, SYNCED, CONVOLUTIONS, NOAM, VERSIONS, STALE, MEMORY)
