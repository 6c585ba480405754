"""Chapter 07: what is asked before a copy is started."""

from __future__ import annotations

from functools import cache

import torch

from pedagogy.costs.offload import bandwidth_for, zero_offload_bytes, zero_offload_traffic
from pedagogy.exercises.chapter07_cache import CASES, replay
from pedagogy.exercises.chapter07_wrong_cache import least_recently
from pedagogy.exercises.prediction import Prediction
from pedagogy.exercises.registry import register
from pedagogy.offload import simulate_offload, transfers
from pedagogy.ranks import Link

LAYERS_MS, COPIES_MS = [30.0] * 4, [50.0] * 4

STALL = Prediction(
    name="stall_at_prefetch_0_and_1",
    chapter="07",
    question="4 layers of 30 ms, each copied in 50 ms. How many ms does the device wait in all? "
    "[prefetch 0, prefetch 1]",
    key=lambda: [simulate_offload(LAYERS_MS, COPIES_MS, k).stall for k in (0, 1)],
    tolerance=1e-4,
    mistakes=[
        ([200, 80], "200 ms is when the last copy ends; the last layer runs after that, 30 ms."),
        (
            [200, 60],
            "three copies are longer by 20 ms than the layer beside them; the first one, 50 ms, "
            "has no layer beside it.",
        ),
        ([200, 50], "the link is slower than the device: it waits before every layer."),
        ([320, 230], "those are the whole times; the layers' 120 ms are no waiting."),
        ([200, 0], "a copy takes longer than a layer: prefetch cannot hide all of it."),
        ([200, 200], "with prefetch 1 the next copy runs while a layer does."),
        ([80, 110], "with prefetch 0 the device waits for the whole copy each time."),
        ([110, 200], "the two are in the wrong order."),
    ],
    because="4 x 50, and 50 + 3 x 20: the first copy is bare, the others stick out by 20 ms.",
)

SECOND = Prediction(
    name="second_layer_ahead",
    chapter="07",
    question="The same 4 equal layers, with prefetch 2: how many ms less than with prefetch 1?",
    key=lambda: (
        simulate_offload(LAYERS_MS, COPIES_MS, 1).makespan
        - simulate_offload(LAYERS_MS, COPIES_MS, 2).makespan
    ),
    tolerance=1e-4,
    unit="ms",
    mistakes=[
        (20, "the link is never idle with prefetch 1: there is no time to be won."),
        (60, "the link is never idle with prefetch 1, and needs 200 ms in any case."),
        (50, "the link is never idle with prefetch 1: no copy becomes shorter."),
        (30, "the link is never idle with prefetch 1: no copy can start earlier."),
        (110, "that is all the waiting; the link is the limit, and it is never idle."),
    ],
    because="The slower of the two sets the pace; more room does not make the link faster.",
)

UNEVEN_MS, UNEVEN_COPIES_MS = [90.0, 10.0, 10.0, 10.0], [30.0] * 4

UNEQUAL = Prediction(
    name="unequal_layers_ahead",
    chapter="07",
    question="Layers of 90, 10, 10 and 10 ms, copies of 30 ms each. How many ms does the device "
    "wait in all? [prefetch 1, prefetch 2]",
    key=lambda: [simulate_offload(UNEVEN_MS, UNEVEN_COPIES_MS, k).stall for k in (1, 2)],
    tolerance=1e-4,
    mistakes=[
        ([70, 70], "beside the long layer there is time for a second copy, if there is room."),
        (
            [70, 30],
            "with prefetch 2, 3 layers are there: the copy of the fourth waits until the first has "
            "ended.",
        ),
        (
            [40, 30],
            "that is prefetch 2 and 3: with prefetch 1 there is room for 2 layers in all, the one "
            "that runs and the next.",
        ),
        ([30, 30], "there is room for 2 and for 3 layers in all, not for all four."),
        ([40, 10], "the first copy hides behind nothing: 30 ms of waiting in any case."),
        ([120, 70], "that is prefetch 0 and 1."),
        ([190, 160], "those are the whole times; the layers' 120 ms are no waiting."),
        ([40, 70], "the two are in the wrong order."),
    ],
    because="A second layer of room lets the third copy use the long layer's time.",
)

COPIES = Prediction(
    name="copies_of_a_step",
    chapter="07",
    question="8 layers, prefetch 1, forward and then backward. How many times is a layer copied to "
    "the device?",
    key=lambda: sum(transfers(8, 1)),
    tolerance=0.0,
    mistakes=[
        (16, "the layer that ends forward begins backward: it is there already."),
        (8, "that is forward; backward needs the layers again."),
        (
            14,
            "there would be room for the layer before the last, but it is kept for what is used "
            "next, and that is the last one again.",
        ),
        (7, "that is backward; forward needs all 8."),
        (24, "the gradients' way to the host is not counted: copies to the device are."),
    ],
    because="8 forward, and 7 backward.",
)

LINK_BYTES_PER_SECOND, PEAK_FLOPS = 16e9, 100e12

TOKENS = Prediction(
    name="tokens_that_hide_a_copy",
    chapter="07",
    question="Weights in fp16, a link of 16 GB/s, a device of 100 TFLOP/s, 2 FLOPs for each weight "
    "and token. From how many tokens on does a layer's forward last as long as its copy?",
    key=lambda: bandwidth_for(0.5, 1.0, PEAK_FLOPS) / LINK_BYTES_PER_SECOND,
    unit="tokens",
    mistakes=[
        (12_500, "a weight has 2 bytes, and it takes 2 FLOPs for each token: the two cancel."),
        (3_125, "2 FLOPs for each token, but 2 bytes for each weight too."),
        (25_000, "in fp16 a weight has 2 bytes, not 4; with 2 FLOPs the two cancel."),
        (1_562.5, "in forward alone it is 2 FLOPs for each weight and token, not 8."),
        (2_083.33, "that is with the 6 FLOPs of forward and backward; forward has 2."),
        (6.25, "100 TFLOP/s are 10^14 and 16 GB/s are 1.6 x 10^10: a thousand times more."),
        (0.00016, "that is the inverse: FLOP/s divided by bytes/s."),
    ],
    because="10^14 / (1.6 x 10^10): 2 x tokens FLOPs for each 2 bytes. The layer's size cancels.",
)

STAY = Prediction(
    name="bytes_that_stay",
    chapter="07",
    question="Adam, mixed precision: 16 bytes for each parameter. Update and states are on the "
    "host, gradients leave as they appear. How many of the 16 stay on the device for the whole "
    "step?",
    key=lambda: sum(zero_offload_bytes(1)["device"].values()),
    tolerance=0.0,
    unit="bytes",
    mistakes=[
        (4, "gradients leave as they appear: only the 16-bit weights stay."),
        (6, "the fp32 values are on the host; the device has the 16-bit weights."),
        (8, "the moments are on the host, and so are fp32 values and gradients."),
        (14, "the other way round: that is what moves to the host."),
        (12, "those are fp32 values and moments, which are on the host."),
        (0, "the weights stay: only if they too come layer by layer is it 0."),
        (16, "states, fp32 values and gradients are on the host."),
    ],
    because="The weights in 16 bits; an eighth.",
)

CROSS = Prediction(
    name="bytes_over_the_link",
    chapter="07",
    question="The same: how many bytes cross the link for each parameter and step, both directions "
    "together?",
    key=lambda: sum(zero_offload_traffic(1).values()),
    tolerance=0.0,
    unit="bytes",
    mistakes=[
        (2, "that is one direction: gradients go up, and new weights come down."),
        (8, "both cross in 16 bits: they are cast on the host."),
        (6, "both cross in 16 bits: they are cast on the host."),
        (14, "that is what lies on the host; most of it never moves."),
        (28, "that is what lies on the host, twice; most of it never moves."),
        (12, "states and fp32 values never leave the host."),
        (16, "states and fp32 values never leave the host."),
    ],
    because="2 bytes of gradient up, 2 bytes of weight down.",
)

CYCLE_CASE = CASES["three forward passes, 4 equal layers, room for 3"]

CYCLE = Prediction(
    name="copies_in_a_cycle",
    chapter="07",
    question="4 equal layers, room for 3, three forward passes and no backward. What was used "
    "least recently leaves. How many times is a layer copied?",
    key=lambda: replay(least_recently(*CYCLE_CASE), *CYCLE_CASE) / CYCLE_CASE[1][0],
    tolerance=0.0,
    mistakes=[
        (6, "that is the optimum, which lets go what is used furthest in the future."),
        (4, "only if all fit; there is room for 3."),
        (8, "what has just left is the very layer that is used next, each time."),
        (9, "none of the three that are there is ever the one that is used next."),
        (10, "what has just left is the very layer that is used next, each time."),
    ],
    because="Each of the 12 uses: what left is what comes next. The optimum is 6.",
)


@cache
def _read_too_early() -> str:
    link, on_device, target = Link(40_000), torch.ones(1_000), torch.zeros(1_000)
    try:
        copy = link.to_host(on_device, into=target)  # 4,000 bytes: 100 ms
        early = target.clone()
        copy.finish()
    except RuntimeError:
        return "error"
    finally:
        link.close()
    return "new" if torch.equal(early, on_device) else "old"


EARLY = Prediction(
    name="read_too_early_c77",
    chapter="07",
    question="A copy to the host has been started, and the CPU reads its target at once, without "
    "waiting. What does it find on our link: 'new' values, 'old' ones, or an 'error'?",
    key=_read_too_early,
    mistakes=[
        ("new", "the call returns before the data is there; only finish() says that it is."),
        ("error", "nothing is raised: it is memory like any other, with what was there before."),
    ],
    because="On a GPU it may also be a part of each, and nothing is raised there either.",
)

register(STALL, SECOND, UNEQUAL, COPIES, TOKENS, STAY, CROSS, CYCLE, EARLY)
