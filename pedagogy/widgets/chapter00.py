"""Explorers of chapter 00: where memory goes, and what each collective does step by step.

The memory is computed by `pedagogy.costs.memory`, for a GPT with GPT-2's vocabulary and heads of
64; the collectives' steps are plain data (`pedagogy.widgets.collective_states`).
"""

from __future__ import annotations

from matplotlib.figure import Figure

from pedagogy.costs import memory as costs
from pedagogy.plots import style
from pedagogy.plots.memory import draw_memory_rows
from pedagogy.widgets.collective_pictures import step_figure
from pedagogy.widgets.collective_states import COLLECTIVES, sent_after
from pedagogy.widgets.controls import choice
from pedagogy.widgets.explorer import Explorer, Try

VOCABULARY = 50257  # of GPT-2
HEAD = 64  # hidden size of one attention head
CARDS = {"T4": 16e9, "A100": 80e9, "H200": 141e9}  # bytes on the card, GB = 10^9
HIDDEN = [256, 512, 768, 1024, 1600, 2048, 4096, 8192, 12288]
SEQUENCE = [128, 256, 512, 1024, 2048, 4096, 8192]
BATCH = [1, 2, 4, 8, 16, 32, 64]


def memory_anatomy(
    layers: int, hidden: int, sequence: int, batch: int, precision: str, optimizer: str
) -> dict[str, int]:
    """Return the bytes of one training step at its peak, by kind (`costs.gpt_peak_bytes`)."""
    heads = max(1, hidden // HEAD)
    return costs.gpt_peak_bytes(
        layers, hidden, heads, sequence, batch, VOCABULARY, precision, optimizer
    )


def smallest_card(num_bytes: float) -> str | None:
    """Return the smallest card of `CARDS` that holds so many bytes, or None."""
    return next((name for name, room in CARDS.items() if num_bytes <= room), None)


def _anatomy_finding(held: dict[str, int], parameters: int) -> str:
    total = sum(held.values())
    largest = max(held, key=held.__getitem__)
    card = smallest_card(total)
    fits = f"the smallest card that holds it is the {card}" if card else "no single card holds it"
    return (
        f"{parameters / 1e6:,.0f} million parameters need {style.bytes_text(total)}: "
        f"{largest.replace('_', ' ')} are {held[largest] / total:.0%}, and {fits}."
    ).replace("optimizer state are", "the optimizer state is")


def _note(kind: str, each: float) -> str:
    """Return what is written beside a kind of model states, of which a parameter has `each`."""
    if kind == "gradients" and each == 0:
        return "(none yet: the peak is at the start of backward)"
    return f"({each:g} bytes a parameter)"


def _draw_cards(ax, total: float) -> None:
    """Draw the capacity of each card that is in sight, and choose how far the axis reaches."""
    above = [room for room in CARDS.values() if room >= total]
    reach = above[0] if above and total > 0.2 * above[0] else total
    ax.set_xlim(0, 1.32 * reach)
    for name, room in CARDS.items():
        if room < 1.3 * reach:
            ax.axvline(room, color=style.ACCENT, linewidth=1.2, linestyle=(0, (4, 2)), zorder=1)
            text = f"{name} {style.bytes_text(room)}"
            place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
            ax.annotate(
                text,
                (room, 1.0),
                xytext=(0, 3),
                ha="center",
                fontsize=8.5,
                color=style.ACCENT,
                **place,
            )


def render_memory_anatomy(
    layers: int, hidden: int, sequence: int, batch: int, precision: str, optimizer: str
) -> Figure:
    """Draw the bytes of one training step by kind, one below the other, against real cards."""
    held = memory_anatomy(layers, hidden, sequence, batch, precision, optimizer)
    parameters = costs.gpt_parameters(layers, hidden, VOCABULARY, sequence)
    notes = [_note(kind, held[kind] / parameters) for kind in held if kind != "activations"]
    freed = "all freed: the peak is at the update"
    notes.append(f"(batch {batch}, sequence {sequence})" if held["activations"] else f"({freed})")
    total = sum(held.values())
    figure = style.new_figure(style.WIDTH, 3.3)
    ax = style.add_axes(figure, 1.35, 0.4, 8.45, 2.3)
    draw_memory_rows(ax, held, notes)
    with style.styled():
        _draw_cards(ax, total)
        figure.text(
            0.135,
            0.92,
            f"One step at its peak: {style.bytes_text(total)} (attention not fused)",
            fontsize=12,
            fontweight="bold",
        )
    return style.finding(figure, _anatomy_finding(held, parameters))


def memory_anatomy_explorer() -> Explorer:
    """Return the explorer of where memory goes."""
    medium = {"layers": 24, "hidden": 1024, "sequence": 1024, "batch": 8}
    plain = {**medium, "precision": "mixed", "optimizer": "adam"}
    return Explorer(
        render_memory_anatomy,
        layers=(1, 96, 24),
        hidden=choice(HIDDEN, 1024),
        sequence=choice(SEQUENCE, 1024),
        batch=choice(BATCH, 8),
        precision=["mixed", "fp32", "half"],
        optimizer=["adam", "momentum", "sgd"],
        try_this=(
            Try(
                "GPT-2 XL, batch 1",
                "parameters and optimizer state alone are more than a T4 holds",
                {**plain, "layers": 48, "hidden": 1600, "batch": 1},
            ),
            Try(
                "twice the batch",
                "activations double, and nothing else moves",
                {**plain, "batch": 16},
            ),
            Try(
                "SGD instead of Adam",
                "the optimizer state falls from 12 to 4 bytes a parameter: the master weights stay",
                {**plain, "optimizer": "sgd"},
            ),
        ),
    )


def _collective_finding(collective: str, ranks: int, step: int) -> str:
    plan = COLLECTIVES[collective](ranks)
    last = len(plan.steps)
    if step == 0:
        how = f"{collective} on {ranks} ranks takes {last} steps: {plan.what}"
        return f"{how}; the dashed line is the most that a rank will have sent."
    sent = sent_after(plan, ranks, step)
    low, high = min(sent), max(sent)
    amount = f"{high:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
    carried = "no data" if plan.share == 0 else f"{amount} times the tensor"
    ends = f", and {plan.what}" if step == last else ""
    return f"{collective}, step {step} of {last}: each rank has sent {carried} so far{ends}."


def render_collectives(collective: str, ranks: int, step: int) -> Figure:
    """Draw one step of a collective: who holds what before and after it, and the bytes sent."""
    step = min(step, last_step(collective, ranks))
    finding = _collective_finding(collective, ranks, step)
    return step_figure(COLLECTIVES[collective](ranks), ranks, step, finding)


def last_step(collective: str, ranks: int) -> int:
    """Return how many steps a collective takes."""
    return len(COLLECTIVES[collective](ranks).steps)


def collectives_explorer() -> Explorer:
    """Return the explorer that walks through each collective."""
    return Explorer(
        render_collectives,
        play="step",
        last=last_step,
        collective=list(COLLECTIVES),
        ranks=(2, 8, 4),
        step=(0, 6, 3),
        try_this=(
            Try(
                "half an all_reduce",
                "after 3 of 6 steps each rank holds the sum of one chunk: a reduce_scatter",
                {"collective": "all_reduce", "ranks": 4, "step": 3},
            ),
            Try(
                "a broadcast to 8",
                "3 steps are enough, and rank 0 sends the whole tensor three times",
                {"collective": "broadcast", "ranks": 8, "step": 3},
            ),
            Try(
                "all_to_all on 4",
                "nothing is added up: the map is transposed, and each rank sends 3/4 of its tensor",
                {"collective": "all_to_all", "ranks": 4, "step": 4},
            ),
        ),
    )
