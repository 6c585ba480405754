"""Explorer of chapter 05: recorded gradients of a model against the range of a format.

The records are histograms over powers of two, made while a model was trained in fp32. A loss scale
of 2^k moves them k places, so that a move of the slider computes nothing anew: it counts again
which bars lie in which range. What training *would* do with gradients that became zero is not shown
here, and is not a matter of shares alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial, update_wrapper
from typing import Any

from matplotlib.figure import Figure

from pedagogy.plots import style
from pedagogy.plots.precision import GAP, PANEL, gradient_range_figure, percent, populated
from pedagogy.precision import FORMATS, GradientRecord, Histogram
from pedagogy.widgets.controls import menu
from pedagogy.widgets.explorer import Explorer, Try

ALL, BOTH = "all layers", "both"
KINDS = ("weight", "activation")
SHOWN = ("fp16", "bf16", "fp8 e5m2")
LARGEST_SCALE = 20
Counted = Mapping[tuple[str, int, str, str], Histogram]  # (model, step, layer, kind)


def counted(records: Mapping[str, Sequence[GradientRecord]]) -> dict:
    """Histograms by (model, step, layer, kind); those of `ALL` layers are sums.

    **Raises** ValueError without a model, or where a model was recorded in other steps.
    """
    steps = {model: sorted({one.step for one in found}) for model, found in records.items()}
    if not steps or not all(steps.values()) or len({tuple(one) for one in steps.values()}) > 1:
        raise ValueError(
            f"recorded steps by model {steps}: at least one model, and the same steps for all"
        )
    by_place: dict[tuple[str, int, str, str], Histogram] = {}
    for model, found in records.items():
        for step, layer, kind, histogram in found:
            for place in ((model, step, layer, kind), (model, step, ALL, kind)):
                known = by_place.get(place)
                by_place[place] = histogram if known is None else known + histogram
    return by_place


def axis_limits(model: str, by_place: Counted) -> tuple[int, int]:
    """One axis for all layers, steps and scales of a model: bars move, and the axis does not."""
    everything = [histogram for (name, *_), histogram in by_place.items() if name == model]
    few = 1e-4 * max(histogram.num_values for histogram in everything)
    low, high = populated(everything, few)
    return low - 1, high + LARGEST_SCALE + 2


def render_gradient_range(
    model: str,
    step: int,
    layer: str,
    kind: str,
    log2_scale: int,
    format: str,
    by_place: Counted,
    limits: Mapping[str, tuple[int, int]],
) -> Figure:
    """Draw the gradients of a layer, or of all, in one step, after scaling, in a format."""
    wanted = KINDS if kind == BOTH else (kind,)
    found = {one: by_place.get((model, step, layer, one)) for one in KINDS}
    shown = {f"{one} gradients": found[one] for one in wanted if found[one] is not None} or {
        f"{one} gradients": histogram for one, histogram in found.items() if histogram
    }
    tall = PANEL if len(shown) == 2 else 2 * PANEL + GAP
    where = "all layers" if layer == ALL else layer
    title = f"{model}, {where}, step {step}, in {format} with a loss scale of 2^{log2_scale}"
    figure = gradient_range_figure(shown, log2_scale, FORMATS[format], title, limits[model], tall)
    missing = [one for one in wanted if found[one] is None]
    note = f" {layer} has no {' and no '.join(missing)} gradients." if missing else ""
    return style.finding(figure, figure.get_label() + note)


class GradientRangeExplorer(Explorer):
    """An explorer whose menu of layers is that of the chosen model."""

    def __init__(self, render: Any, *, layers: Mapping[str, list[str]], **more: Any) -> None:
        self._layers = layers
        super().__init__(render, **more)

    def set(self, **values: Any) -> GradientRangeExplorer:
        """Move several controls, the model first, and draw once."""
        first = {name: values[name] for name in ("model",) if name in values}
        super().set(**{**first, **values})
        return self

    def _limit_steps(self) -> None:
        widget, options = self.controls["layer"], self._layers[self.controls["model"].value]
        if list(widget.options) != options:
            value = widget.value if widget.value in options else ALL
            widget.options = options
            widget.value = value


def gradient_range_explorer(records: Mapping[str, Sequence[GradientRecord]]) -> Explorer:
    """Return the explorer of recorded gradients, over lists of records by model's name.

    Try this: without a scale, see how much of the activation gradients is lost in fp16 and how
    little of the weights'. Raise the scale until something overflows: the range between is what a
    dynamic scale lives in. Choose bf16: it needs none.
    **Raises** ValueError without a model, or where models were recorded in different steps.
    """
    by_place = counted(records)
    models = list(records)
    layers = {
        model: list(
            dict.fromkeys([ALL, *(layer for name, _, layer, _ in by_place if name == model)])
        )
        for model in models
    }
    steps = sorted({step for _, step, _, _ in by_place})
    limits = {model: axis_limits(model, by_place) for model in models}
    render = partial(render_gradient_range, by_place=by_place, limits=limits)
    return GradientRangeExplorer(
        update_wrapper(render, render_gradient_range),
        layers=layers,
        model=menu(models, models[0]),
        step=menu(steps, steps[-1]),
        layer=menu(layers[models[0]], ALL),
        kind=[BOTH, *KINDS],
        log2_scale=(0, LARGEST_SCALE, 0),
        format=list(SHOWN),
        try_this=_tries(models[0], steps[-1], by_place),
    )


def _tries(model: str, step: int, by_place: Counted) -> tuple[Try, ...]:
    """Three settings; what they show is counted here."""
    plain = {
        "model": model, "step": step, "layer": ALL, "kind": BOTH, "log2_scale": 0, "format": "fp16",
    }  # fmt: skip
    both = {kind: by_place[model, step, ALL, kind] for kind in KINDS}
    largest = FORMATS["fp16"].bias - populated(list(both.values()))[1]
    scale = max(0, min(largest, LARGEST_SCALE))

    def lost(kind: str, log2_scale: int, name: str) -> str:
        return percent(both[kind].shares(log2_scale, FORMATS[name])["underflow"])

    return (
        Try(
            "no loss scale",
            f"in fp16 {lost('activation', 0, 'fp16')} of the activation gradients become zero, "
            f"and {lost('weight', 0, 'fp16')} of the weights' gradients",
            plain,
        ),
        Try(
            "the largest scale",
            f"2^{scale}, the most without an overflow: {lost('activation', scale, 'fp16')} of the "
            "activation gradients become zero",
            {**plain, "log2_scale": scale},
        ),
        Try(
            "bf16 instead",
            f"{lost('activation', 0, 'bf16')} of the activation gradients become zero without any "
            "scale: the range is that of fp32",
            {**plain, "format": "bf16"},
        ),
    )
