"""Explorer of chapter 07: what overlaps when a GPT's layers are copied to the device in time.

All is computed. A layer's forward takes its FLOPs at half of the named GPU's 16-bit peak, its
backward twice that, its copy its bytes (2 a parameter) at the link's speed; sequences of 1,024
tokens. Unequal layers: every second one is a mixture of four experts, each as large as a
feed-forward, of which a token uses one: three times the bytes, the same compute.

A link is *hidden* when the device waits for the first layer only, before which nothing runs.
"""

from __future__ import annotations

from matplotlib.figure import Figure

from pedagogy.costs.compute import gpt_training_flops
from pedagogy.costs.offload import TIERS
from pedagogy.costs.precision import DEVICES
from pedagogy.offload import Offload, simulate_offload, transfers
from pedagogy.offload.simulate import uses_of_a_step
from pedagogy.plots import style
from pedagogy.plots.offload import as_step, overlap_figure
from pedagogy.widgets.controls import choice, menu
from pedagogy.widgets.explorer import Explorer, Try

SEQUENCE = 1024
REACHED = 0.5  # of the peak
EXPERTS = 3  # times the bytes of a plain layer: 12 h^2 + 3 x 8 h^2 over 12 h^2
LAYERS = [2, 3, 4, 6, 8, 12]
HIDDEN = [1024, 2048, 4096, 8192]
BATCHES = [1, 2, 4, 8, 16, 32]
LINKS = [
    ("NVMe, 7 GB/s", TIERS["NVMe"].bytes_per_second),
    ("PCIe 3.0, 15.8 GB/s", TIERS["DRAM"].bytes_per_second / 2),
    ("PCIe 4.0, 31.5 GB/s", TIERS["DRAM"].bytes_per_second),
    ("PCIe 5.0, 63 GB/s", 2 * TIERS["DRAM"].bytes_per_second),
]
KINDS = ["equal", "unequal"]
MOST = 4096  # sequences: the largest batch that is tried


def layer_bytes(layers: int, hidden: int, kind: str) -> list[int]:
    """Bytes of each layer's weights in 16 bits."""
    plain = 2 * (12 * hidden**2 + 13 * hidden)
    return [plain * (EXPERTS if kind == "unequal" and i % 2 else 1) for i in range(layers)]


def forward_seconds(hidden: int, batch: int, gpu: str) -> float:
    """Seconds of one layer's forward."""
    flops = gpt_training_flops(1, hidden, SEQUENCE, batch, vocabulary=0) / 3
    return flops / (REACHED * DEVICES[gpu].tensor_16)


def step(
    layers: int, hidden: int, batch: int, gpu: str, link: float, prefetch: int, kind: str
) -> Offload:
    """The timeline of forward and backward of all layers."""
    forward = forward_seconds(hidden, batch, gpu)
    seconds = [one / link for one in layer_bytes(layers, hidden, kind)]
    needed = zip(uses_of_a_step(layers), transfers(layers, prefetch), strict=True)
    copies = [seconds[layer] * is_needed for layer, is_needed in needed]
    return simulate_offload([forward] * layers + [2 * forward] * layers, copies, prefetch)


def hidden_from(
    layers: int, hidden: int, gpu: str, link: float, prefetch: int, kind: str
) -> int | None:
    """The smallest batch at which only the first copy is waited for; None if there is none."""
    first = layer_bytes(layers, hidden, kind)[0] / link

    def is_hidden(batch: int) -> bool:
        found = step(layers, hidden, batch, gpu, link, prefetch, kind)
        return found.stall <= first * (1 + 1e-9) + 1e-12

    low, high = 0, MOST
    if not is_hidden(high):
        return None
    while high - low > 1:  # more sequences never hide less
        middle = (low + high) // 2
        low, high = (low, middle) if is_hidden(middle) else (middle, high)
    return high


def render_offload(
    layers: int, hidden: int, batch: int, gpu: str, link: float, prefetch: int, kind: str
) -> Figure:
    """Draw every copy waited for, and copies `prefetch` layers ahead, over one time axis."""
    chosen = {"layers": layers, "hidden": hidden, "gpu": gpu, "link": link, "kind": kind}
    ahead = step(batch=batch, prefetch=prefetch, **chosen)
    runs = {
        "every copy waits": step(batch=batch, prefetch=0, **chosen).events,
        f"prefetch {prefetch}": ahead.events,
    }
    figure = overlap_figure({title: as_step(events, layers) for title, events in runs.items()})
    copies = layer_bytes(layers, hidden, kind)
    windows = [sum(copies[i : i + prefetch + 1]) for i in range(layers)]
    start = hidden_from(prefetch=prefetch, **chosen)
    until = f"hidden from batch {start} on" if start else "not hidden at any batch"
    return style.finding(
        figure,
        f"With prefetch {prefetch} the device waits {ahead.stall_fraction:.0%} of "
        f"{style.seconds_text(ahead.makespan)} and holds at most {style.bytes_text(max(windows))} "
        f"of weights; a layer is copied in {_range(copies, link)} and computed forward in "
        f"{style.seconds_text(forward_seconds(hidden, batch, gpu))}, so the link is {until}.",
    )


def _range(copies: list[int], link: float) -> str:
    shortest, longest = (style.seconds_text(f(copies) / link) for f in (min, max))
    return shortest if shortest == longest else f"{shortest} or {longest}"


def offload_explorer() -> Explorer:
    """Return the explorer of what overlaps.

    Try this: batch hides the link; hidden does not; and where layers are unequal, two layers ahead
    do what one cannot.
    """
    plain = {
        **{"layers": 6, "hidden": 4096, "batch": 2, "gpu": "A100", "link": LINKS[2][1]},
        **{"prefetch": 1, "kind": "equal"},
    }
    return Explorer(
        render_offload,
        layers=choice(LAYERS, plain["layers"]),
        hidden=choice(HIDDEN, plain["hidden"]),
        batch=choice(BATCHES, plain["batch"]),
        gpu=menu(list(DEVICES), plain["gpu"]),
        link=choice(LINKS, plain["link"]),
        prefetch=(0, 6, plain["prefetch"]),
        kind=KINDS,
        try_this=(
            Try(
                "a larger batch",
                "batch 8 instead of 2: the device waits for the first copy only",
                {**plain, "batch": 8},
            ),
            Try(
                "a wider model",
                "hidden 8192 instead of 4096: four times the bytes, four times the FLOPs, and the "
                "share of waiting stays",
                {**plain, "hidden": 8192},
            ),
            Try(
                "two layers ahead",
                "unequal layers: prefetch 2 waits less than 1; equal ones, at this batch, need no "
                "more than 1",
                {**plain, "kind": "unequal", "batch": 8, "prefetch": 2},
            ),
        ),
    )
