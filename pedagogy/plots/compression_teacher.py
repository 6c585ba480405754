"""What a teacher adds: a student's accuracy, and the size of the gradient of soft targets.

A gain is a finding where every run with the teacher ends above every run without; where the ranges
overlap the sentence says so, and the seeds may have made the difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from pedagogy.plots import style
from pedagogy.plots.curves import curves_figure
from pedagogy.plots.precision import percent


def distillation_figure(
    accuracies: Mapping[int, Mapping[str, Sequence[float]]],
    title: str = "A student alone, and with a teacher",
) -> Figure:
    """Accuracy of a student against the number of labelled examples: medians, and all seeds' range.

    accuracies: {labels: {"alone": one of each seed, from 0 to 1, "T = 2": ..., ...}}, the first
    name being the student without a teacher.
    **Raises** ValueError where not all numbers of labels have the same names.
    """
    labels, names = list(accuracies), [list(ways) for ways in accuracies.values()]
    if not names or any(ways != names[0] for ways in names):
        raise ValueError(f"names by number of labels {dict(zip(labels, names, strict=True))}")
    runs = {name: [[100 * a for a in accuracies[n][name]] for n in labels] for name in names[0]}
    figure = curves_figure(
        {name: (labels, np.transpose(by_label)) for name, by_label in runs.items()},
        _distillation_finding(labels, runs),
        title=title,
        x_label="labelled examples",
        y_label="accuracy (%)",
        x_scale="log",
        markers=True,
    )
    with style.styled():
        figure.axes[0].xaxis.set_major_locator(FixedLocator(labels))
    return figure


def _distillation_finding(labels: list[int], runs: Mapping[str, list[list[float]]]) -> str:
    """The best taught student at each number of labels, and whether all seeds agree."""
    alone, *taught = runs
    told = []
    for i, many in enumerate(labels):
        best = max(taught, key=lambda name: np.median(runs[name][i]))
        without, by = runs[alone][i], runs[best][i]
        gain = round(np.median(by) - np.median(without), 1) + 0.0  # never -0.0
        apart = "every run above every run" if min(by) > max(without) else "ranges overlap"
        told.append(
            f"{many:,} labels {np.median(without):.1f}% {alone}, {np.median(by):.1f}% with {best} "
            f"({gain:+.1f} points, {apart})"
        )
    return f"Median accuracies: {'; '.join(told)}."


def gradient_size_figure(
    temperatures: Sequence[float], sizes: Mapping[str, Sequence[float]]
) -> Figure:
    """The size of the soft loss's gradient against the temperature, a line for each way."""
    told = [
        f"{name} {percent(line[-1] / line[0])} of its size at T = {temperatures[0]:g}"
        for name, line in sizes.items()
    ]
    return curves_figure(
        {name: (temperatures, line) for name, line in sizes.items()},
        f"At T = {temperatures[-1]:g} the gradient has {'; '.join(told)}.",
        title="The gradient of soft targets",
        x_label="temperature T",
        y_label="size of the gradient",
        x_scale="log2",
        y_scale="log",
        markers=True,
    )
