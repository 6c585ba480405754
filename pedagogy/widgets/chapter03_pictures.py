"""Drawing one step of a plan: its tensors on the ranks, what leads from one to the next, the bytes.

Upper row: tensors of forward; lower row: their gradients, each under its own; at the bottom a strip
with all steps.
"""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pedagogy.plots import style
from pedagogy.plots.labels import add_labels
from pedagogy.plots.lanes import add_boxes, add_lines
from pedagogy.plots.tensor import PARTS, ROWS, WHOLE, Matrix, draw_matrices, inches_axes
from pedagogy.widgets.chapter03_plans import SIZES, Link, Plan, Tensor

HEIGHT = 5.4  # inches
SIDES = {"s": 0.95, "h": 0.66, "3h": 0.9, "4h": 0.98, "V": 0.98, "1": 0.34, "3": 0.7}  # inches
FORWARD, BACKWARD, STRIP = 3.86, 1.68, 0.38  # inches: the middles of the rows, and of the strip
SHORT = {"": "", "all_reduce": "all_reduce", "all_gather": "gather", "reduce_scatter": "scatter"}


def plan_figure(plan: Plan, ranks: int, step: int, title: str, finding: str) -> Figure:
    """Return the picture of a plan after a step."""
    figure = style.new_figure(style.WIDTH, HEIGHT)
    ax = inches_axes(figure)
    columns = _columns(plan)
    draw_matrices(ax, _matrices(plan, ranks, step, columns), ranks, 6.8)
    _draw_links(ax, plan, ranks, step, columns)
    _draw_strip(ax, plan, step)
    sent, most = (plan.sent_bytes(one, ranks) for one in (step, plan.last))
    _write_title(figure, title, sent, most)
    return style.finding(figure, finding)


def _write_title(figure: Figure, title: str, sent: float, most: float) -> None:
    top = 1 - 0.3 / HEIGHT
    with style.styled():
        figure.text(0.012, top, title, fontsize=12, fontweight="bold", gid="title")
        text = f"sent by each rank: {style.bytes_text(sent)} of {style.bytes_text(most)}"
        figure.text(0.988, top, text, ha="right", color=style.MUTED, gid="sent")
        for middle, name in ((FORWARD, "forward"), (BACKWARD, "backward: the gradients")):
            figure.text(0.012, (middle + 0.94) / HEIGHT, name, color=style.MUTED, fontsize=9)


def _columns(plan: Plan) -> list[tuple[float, float]]:
    """Return (middle, width) in inches of each tensor of the chain, spread over the figure."""
    widths = [SIDES[tensor.columns] for tensor in plan.tensors]
    rooms = [max(width, 0.86) for width in widths]
    gap = min((style.WIDTH - 0.3 - sum(rooms)) / max(len(rooms) - 1, 1), 0.9)
    left = (style.WIDTH - sum(rooms) - gap * (len(rooms) - 1)) / 2
    middles = []
    for room in rooms:
        middles.append(left + room / 2)
        left += room + gap
    return list(zip(middles, widths, strict=True))


def _made(plan: Plan, step: int) -> tuple[dict[int, int], dict[int, int]]:
    """Return, for forward and for backward, which tensors exist and the step that made them."""
    targets = {link.target for link in plan.links}
    forward = {index: 0 for index in range(len(plan.tensors)) if index not in targets}
    backward = {}
    if step > len(plan.links):
        backward[plan.links[-1].target] = len(plan.links)
    for one in range(1, step + 1):
        link, is_backward = plan.link_of(one)
        if not is_backward:
            forward[link.target] = one
            continue
        for index in (link.source, link.weight):
            if index is not None and plan.tensors[index].gradient:
                backward[index] = one
    return forward, backward


def _matrices(plan: Plan, ranks: int, step: int, columns: list) -> list[Matrix]:
    forward, backward = _made(plan, step)
    link, is_backward = plan.link_of(step) if step else (None, False)
    read = _read(link, is_backward)
    matrices = []
    for index, tensor in enumerate(plan.tensors):
        rows = [("forward", FORWARD, tensor.cut, forward, False)]
        if tensor.gradient:
            rows.append(("backward", BACKWARD, tensor.gradient, backward, True))
        for look, middle, cut, made, lower in rows:
            now = step and made.get(index) == step
            frame = "made" if now else "read" if (index, lower) in read else ""
            matrices.append(
                _matrix(
                    tensor,
                    columns[index],
                    middle,
                    cut,
                    look if index in made else "later",
                    frame or ("weight" if tensor.weight and index in made else ""),
                    ranks,
                    lower,
                )
            )
    return matrices


def _read(link: Link | None, backward: bool) -> set[tuple[int, bool]]:
    """Return what a step reads, as (tensor, whether its gradient)."""
    if link is None:
        return set()
    if not backward:
        return {(index, False) for index in (link.source, link.weight) if index is not None}
    kept = {(index, False) for index in (link.source, link.weight) if index is not None}
    return {(link.target, True)} | (set() if any(link.exchanges) else kept)


def _matrix(
    tensor: Tensor,
    column: tuple[float, float],
    middle: float,
    cut: str,
    look: str,
    frame: str,
    ranks: int,
    is_gradient: bool,
) -> Matrix:
    center, width = column
    height = SIDES[tensor.rows]
    told = "cut by tokens" if (cut, tensor.rows) == (ROWS, "s") else cut
    notes = [told] if is_gradient else [told, *_shapes(tensor, cut, ranks)]
    name = f"d {tensor.name}" if is_gradient else tensor.name
    return Matrix(
        center - width / 2, middle - height / 2, width, height, cut, look, frame, name, notes
    )


def _shapes(tensor: Tensor, cut: str, ranks: int) -> list[str]:
    """Return the shape, and for a tensor that is cut the shape of a rank's piece."""
    rows, columns = SIZES[tensor.rows], SIZES[tensor.columns]
    full = f"{rows} x {columns}"
    if cut in (WHOLE, PARTS):
        return [full]
    piece = (rows // ranks, columns) if cut == ROWS else (rows, columns // ranks)
    return [full, f"each {piece[0]} x {piece[1]}"]


def _draw_links(ax: Axes, plan: Plan, ranks: int, step: int, columns: list) -> None:
    """Write what leads from tensor to tensor; an arrow, kind and bytes for what happens now."""
    now = plan.link_of(step) if step else None
    signs = []
    for link in plan.links:
        for backward, middle in ((False, FORWARD), (True, BACKWARD)):
            ends = (plan.tensors[link.source], plan.tensors[link.target])
            at = (_gap_before(columns, link.target), middle)
            if not backward or all(end.gradient for end in ends):
                both_ways = all(link.exchanges)
                sign = SHORT[link.exchanges[backward]] if both_ways else link.symbol
                signs.append((sign, at))
            if link.weight is not None and not backward:
                signs.append((link.operator, (_gap_before(columns, link.weight), middle)))
            if now == (link, backward):
                _draw_arrow(ax, at, backward)
                if link.exchanges[backward]:
                    _draw_exchange(ax, link, backward, ranks, at)
    texts, at = [text for text, _ in signs], [at for _, at in signs]
    add_labels(ax, "signs", texts, at, style.MUTED, 7.5)


def _gap_before(columns: list, index: int) -> float:
    """Return the middle of the gap between a tensor and the one at its left."""
    left, right = columns[index - 1], columns[index]
    return (left[0] + left[1] / 2 + right[0] - right[1] / 2) / 2


def _draw_arrow(ax: Axes, at: tuple[float, float], backward: bool) -> None:
    x, y = at[0], at[1] - 0.15
    start, end = (x + 0.13, x - 0.13) if backward else (x - 0.13, x + 0.13)
    back = 0.06 if backward else -0.06
    head = [(end + back, y + 0.04), (end, y), (end + back, y - 0.04)]
    add_lines(ax, "arrow", [[(start, y), (end, y)], head], color=style.ACCENT)


def _draw_exchange(ax: Axes, link: Link, backward: bool, ranks: int, at: tuple) -> None:
    kind = link.exchanges[backward]
    colour, _ = style.communication_look(kind)
    name = kind if link.count == 1 else f"{link.count} {kind}s"
    text = f"{name}: {style.bytes_text(link.sent_bytes(backward, ranks))}"
    x = min(max(at[0], 1.0), style.WIDTH - 1.0)
    add_labels(ax, "exchange", [text], [(x, at[1] + 0.78)], colour, 9.0, "bold")


def _draw_strip(ax: Axes, plan: Plan, step: int) -> None:
    """Draw all steps as cells, exchanges in the colour and hatch of their kind."""
    width = (style.WIDTH - 0.3) / plan.last
    groups: dict[str, list] = {}
    names, kinds = [], []
    for one in range(1, plan.last + 1):
        link, backward = plan.link_of(one)
        left = 0.15 + (one - 1) * width + 0.02
        right = left + width - 0.04
        low, high = STRIP - 0.13, STRIP + 0.13
        groups.setdefault(link.exchanges[backward], []).append(
            [(left, low), (left, high), (right, high), (right, low)]
        )
        middle = (left + right) / 2
        names.append((str(one), (middle, STRIP - 0.24)))
        kinds.append((SHORT[link.exchanges[backward]], (middle, STRIP + 0.26)))
    for kind, boxes in groups.items():
        colour, hatch = style.communication_look(kind) if kind else ("#AEB6BF", "")
        add_boxes(ax, f"strip {kind or 'compute'}", boxes, colour, hatch)
    for gid, pairs, ink in (("steps", names, style.MUTED), ("kinds", kinds, style.INK)):
        kept = [pair for pair in pairs if pair[0]]
        add_labels(ax, gid, [text for text, _ in kept], [at for _, at in kept], ink, 7.5)
    middle = 0.15 + len(plan.links) * width
    add_lines(ax, "turn", [[(middle, STRIP - 0.3), (middle, STRIP + 0.2)]], linewidth=0.9)
    if step:
        left = 0.15 + (step - 1) * width
        frame = [
            (left, STRIP - 0.16),
            (left, STRIP + 0.16),
            (left + width, STRIP + 0.16),
            (left + width, STRIP - 0.16),
        ]
        add_boxes(ax, "now", [frame], "none", edgecolors=style.ACCENT, linewidths=2.4, zorder=6)
