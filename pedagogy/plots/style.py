"""One look for every picture of the workbook.

The problem
-----------
A figure is read in JupyterLab (light or dark), on Colab, in a static viewer and on paper, by
people who see colours differently, on machines with other fonts and another matplotlibrc. Left to
the defaults, the same cell draws a different picture for each of them, and some of them see
black labels on a black page.

How it works
------------
- `new_figure` returns a `StyledFigure`: a matplotlib Figure that is not known to pyplot (nothing
  piles up, nothing is shown twice), with its size and dpi given, an opaque white background, and
  drawn under this module's settings whatever the user's matplotlibrc says.
- Only DejaVu is asked for: it comes with matplotlib.
- Micro-batches have eight hues (Okabe and Ito 2008, made equally light): a light one for forward
  and a dark one for backward, at least 30 apart in L*, so that the two differ in grey as well;
  a paler one still for the half of a backward that is for the weights.
  The number stands in the block, and backward wears a bar: colour is never the only sign.
- Kinds of memory and of communication have a colour and a hatch each.
- `finding(figure, sentence)` writes what the picture shows into the figure's label. That label is
  the alt text of the stored picture and the readout of an explorer.

What real systems do differently: profilers (Perfetto, Nsight) colour by name and leave the rest
to the reader's zoom. Here a picture makes one point, and says which.

Source: Okabe and Ito 2008, "Color Universal Design".
"""

from __future__ import annotations

import io
import re
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

DPI = 100
WIDTH = 10.0  # inches: 1000 px at 100 dpi

INK = "#1F2933"  # text and axes
MUTED = "#5B6470"  # secondary text: 6:1 on white
GRID = "#DDE1E6"
LANE = "#EEF0F3"  # an empty lane: the bubble
PAPER = "#FFFFFF"
ACCENT = "#B34700"  # peaks, limits, whatever the sentence is about

FORWARD = ("#9CCBEB", "#F6D27A", "#8FDCC0", "#EFBBD6", "#BFE3F7", "#F2B48A", "#CFD08F", "#CDB9E3")
BACKWARD = ("#0072B2", "#8A6100", "#00765A", "#A8497D", "#2A6F97", "#B34700", "#66690A", "#5B3A8C")
WEIGHT = ("#E1F0FA", "#FCF2DC", "#DDF5EC", "#FAEBF3", "#ECF7FD", "#FBE6DA", "#F1F1DE", "#EFE9F6")

# kind -> (colour, hatch)
MEMORY = {
    "parameters": ("#0072B2", ""),
    "gradients": ("#E69F00", "//"),
    "optimizer state": ("#00765A", "\\\\"),
    "activations": ("#E3A6C8", ".."),
    "buffers": ("#5B3A8C", "xx"),
    "other": ("#AEB6BF", "---"),
}
COMMUNICATION = {
    "all_reduce": ("#B34700", ""),
    "reduce_scatter": ("#8A6100", "//"),
    "all_gather": ("#00765A", "\\\\"),
    "all_to_all": ("#5B3A8C", "xx"),
    "broadcast": ("#A8497D", "..."),
    "barrier": ("#5B6470", "|||"),
    "send": ("#1F2933", ""),
    "recv": ("#7B8794", "--"),
    "exchange": ("#1F2933", "..."),
}
SERIES = BACKWARD
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))

# Settings that belong to the program, not to the look of a picture.
_NOT_STYLE = re.compile(
    r"backend|interactive|toolbar|timezone|date\.epoch|docstring|webagg|tk\.|macosx|keymap"
    r"|savefig\.directory|figure\.max_open_warning|animation|_internal"
)
_OURS: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.serif": ["DejaVu Serif"],
    "font.monospace": ["DejaVu Sans Mono"],
    "font.size": 9.5,
    "mathtext.fontset": "dejavusans",
    "figure.figsize": (WIDTH, 4.0),
    "figure.dpi": DPI,
    "savefig.dpi": "figure",
    "figure.facecolor": PAPER,
    "figure.edgecolor": PAPER,
    "savefig.facecolor": PAPER,
    "savefig.transparent": False,
    "axes.facecolor": PAPER,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.labelsize": 9.5,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.unicode_minus": False,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "hatch.linewidth": 0.5,
    "svg.fonttype": "path",
    "svg.hashsalt": "pedagogy",
}


def _settings() -> dict[str, Any]:
    """Return matplotlib's own defaults with the workbook's look on top."""
    defaults = dict.items(matplotlib.rcParamsDefault)
    return {key: value for key, value in defaults if not _NOT_STYLE.search(key)} | _OURS


SETTINGS = _settings()


_applied = ContextVar("style applied", default=False)


@contextmanager
def styled():
    """Apply the style within the block; the user's settings are back afterwards."""
    if _applied.get():  # blocks within a block cost nothing: a picture has twenty
        yield
        return
    now = matplotlib.rcParams
    changed = {key: value for key, value in SETTINGS.items() if now[key] != value}
    token = _applied.set(True)
    try:
        with matplotlib.rc_context(changed):
            yield
    finally:
        _applied.reset(token)


class StyledFigure(Figure):
    """A Figure that is built and drawn under `SETTINGS`, whatever matplotlibrc says."""

    def draw(self, renderer) -> None:
        with styled():
            super().draw(renderer)

    def savefig(self, fname, **kwargs) -> None:
        with styled():
            super().savefig(fname, **kwargs)


def new_figure(width: float = WIDTH, height: float = 4.0) -> StyledFigure:
    """Return an empty figure of the given size in inches, at 100 dpi, unknown to pyplot."""
    with styled():
        return StyledFigure(figsize=(width, height), dpi=DPI, facecolor=PAPER)


def add_axes(figure: Figure, left: float, bottom: float, width: float, height: float, **kw) -> Axes:
    """Return new axes at a place given in inches from the lower left corner of the figure."""
    full_width, full_height = figure.get_size_inches()
    box = (left / full_width, bottom / full_height, width / full_width, height / full_height)
    with styled():
        return figure.add_axes(box, **kw)


def finding(figure: Figure, sentence: str) -> Figure:
    """Make the sentence the figure's label: its alt text, and an explorer's readout.

    Raises: ValueError if it is empty or does not end like a sentence.
    """
    if not sentence.strip().endswith("."):
        raise ValueError(f"a finding is a sentence that ends with a full stop, got {sentence!r}")
    figure.set_label(" ".join(sentence.split()))
    return figure


def png(figure: Figure, dpi: float = DPI) -> bytes:
    """Return the figure as PNG, opaque, at its own size."""
    stream = io.BytesIO()
    with styled():
        figure.savefig(stream, format="png", dpi=dpi, facecolor=figure.get_facecolor())
    return stream.getvalue()


def with_palette(png: bytes) -> bytes:
    """Return a PNG with 256 colours, a third of the bytes: enough for flat colours and text."""
    from PIL import Image

    stream = io.BytesIO()
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    picture = picture.quantize(256, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    picture.save(stream, format="png", optimize=True)
    return stream.getvalue()


def memory_look(kind: str) -> tuple[str, str]:
    """Return the colour and the hatch of a kind of memory ("other" for an unknown one)."""
    return MEMORY.get(kind.replace("_", " "), MEMORY["other"])


def communication_look(kind: str) -> tuple[str, str]:
    """Return the colour and the hatch of a kind of communication."""
    return COMMUNICATION.get(kind.rstrip("_").removesuffix("_async"), ("#5B6470", "..."))


def bytes_text(num_bytes: float) -> str:
    """Return a size in decimal units with three figures: 1 GB is 10^9 bytes."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(num_bytes) >= 0.9995 * size:
            return (
                f"{num_bytes / size:.3g} {unit}"
                if num_bytes < 999.5 * size
                else (f"{num_bytes / size:.0f} {unit}")
            )
    return f"{num_bytes:.0f} bytes"


def seconds_text(seconds: float) -> str:
    """Return a duration in the unit that suits it, with three figures."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if abs(seconds) >= 0.9995 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"
