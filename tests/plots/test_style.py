"""The look is the same on every machine, legible on any page, and not by colour alone."""

import io
import subprocess
import sys

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb

from pedagogy.plots import style
from pedagogy.plots.curves import curves_figure


def luminance(colour) -> float:
    """Relative luminance (WCAG 2.1)."""
    channels = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return float(np.dot(channels, [0.2126, 0.7152, 0.0722]))


def contrast(one, other) -> float:
    """Contrast ratio of two colours (WCAG 2.1): 1 to 21."""
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def lightness(colour) -> float:
    """L* of CIELAB: 0 is black, 100 is white."""
    y = luminance(colour)
    return 116 * y ** (1 / 3) - 16 if y > 0.008856 else 903.3 * y


def small_figure():
    return curves_figure({"a": ([1, 2, 3], [1, 4, 9])}, "Squares grow.", x_label="n", y_label="n^2")


def pixels(figure) -> np.ndarray:
    return plt.imread(io.BytesIO(style.png(figure)))


def test_N01_a_figure_is_written_as_text_without_an_address():
    assert repr(small_figure()) == "<StyledFigure size 1000x400 with 1 Axes>"


def test_a_picture_with_a_palette_looks_the_same_and_is_smaller():
    full = style.png(small_figure())
    small = style.with_palette(full)
    assert len(small) < 0.6 * len(full)
    assert small == style.with_palette(full)
    before, after = (plt.imread(io.BytesIO(one))[:, :, :3] for one in (full, small))
    assert np.abs(before - after).max() < 0.1


def test_N02_the_picture_does_not_depend_on_the_users_settings():
    expected = pixels(small_figure())
    theirs = {
        "figure.figsize": (3, 2),
        "figure.dpi": 300,
        "savefig.dpi": 50,
        "savefig.transparent": True,
        "savefig.bbox": "tight",
        "font.size": 20,
        "axes.facecolor": "black",
        "xtick.labelsize": 30,
        "xtick.major.size": 20,
        "lines.linewidth": 9,
        "axes.grid": True,
    }
    with matplotlib.rc_context(theirs):
        assert np.array_equal(pixels(small_figure()), expected)
        assert matplotlib.rcParams["font.size"] == 20, "the user's settings are back afterwards"


def test_N02_a_front_end_that_draws_by_itself_gets_the_same_picture():
    def drawn():
        canvas = FigureCanvasAgg(small_figure())
        canvas.draw()
        return np.asarray(canvas.buffer_rgba()).copy()

    expected = drawn()
    with matplotlib.rc_context({"xtick.major.size": 20, "xtick.labelsize": 30, "font.size": 30}):
        assert np.array_equal(drawn(), expected)


def test_N21_sizes_and_dpi_are_explicit_and_at_most_100():
    figure = style.new_figure()
    assert figure.dpi == 100
    assert tuple(figure.get_size_inches()) == (10.0, 4.0)


def test_N08_figures_are_unknown_to_pyplot():
    before = plt.get_fignums()
    for _ in range(3):
        small_figure()
    assert plt.get_fignums() == before


@pytest.mark.parametrize("page", ["#111111", "#FFFFFF"])
def test_N17_tick_labels_are_legible_on_any_page(page):
    figure = small_figure()
    image = pixels(figure)
    composite = image[..., :3] * image[..., 3:] + np.array(to_rgb(page)) * (1 - image[..., 3:])
    axes = figure.axes[0]
    box = axes.get_xticklabels()[1].get_window_extent()
    height = image.shape[0]
    rows = slice(height - int(box.y1) - 1, height - int(box.y0) + 1)
    patch = composite[rows, int(box.x0) : int(box.x1) + 1].reshape(-1, 3)
    darkest = min(patch, key=lambda colour: luminance(tuple(colour)))
    lightest = max(patch, key=lambda colour: luminance(tuple(colour)))
    assert contrast(tuple(darkest), tuple(lightest)) >= 4.5


def test_N17_every_pixel_of_a_figure_is_opaque():
    assert pixels(small_figure())[..., 3].min() == 1.0


@pytest.mark.parametrize("ink", [style.INK, style.MUTED, style.ACCENT, *style.SERIES])
def test_N17_inks_contrast_with_the_paper(ink):
    assert contrast(ink, style.PAPER) >= 4.5


def test_N18_forward_and_backward_differ_in_lightness_whatever_the_micro_batch():
    lightest_backward = max(map(lightness, style.BACKWARD))
    assert min(map(lightness, style.FORWARD)) - lightest_backward >= 20


def test_N18_numbers_are_legible_in_their_blocks():
    assert all(contrast(style.INK, colour) >= 4.5 for colour in style.FORWARD)
    assert all(contrast(style.PAPER, colour) >= 4.5 for colour in style.BACKWARD)


@pytest.mark.parametrize("looks", [style.MEMORY, style.COMMUNICATION])
def test_N18_kinds_of_memory_and_communication_differ_without_their_hue(looks):
    kinds = list(looks)
    for i, one in enumerate(kinds):
        for other in kinds[i + 1 :]:
            (colour, hatch), (their_colour, their_hatch) = looks[one], looks[other]
            apart = abs(lightness(colour) - lightness(their_colour))
            assert hatch != their_hatch or apart >= 20, (one, other)


EVERYTHING = """
import io, sys, matplotlib
from pedagogy.plots import style
from pedagogy.widgets import chapter00, chapter01
used = set()
find = matplotlib.font_manager.FontManager.findfont
def spy(self, prop, *args, **kwargs):
    used.update(matplotlib.font_manager.FontProperties._from_any(prop).get_family())
    return find(self, prop, *args, **kwargs)
matplotlib.font_manager.FontManager.findfont = spy
for figure in (
    chapter00.render_memory_anatomy(24, 1024, 1024, 8, "mixed", "adam"),
    chapter00.render_collectives("all_to_all", 4, 2),
    chapter01.render_ring_all_reduce(8, 3),
    chapter01.render_bucket_overlap(10**7, 10.0, 20.0, 100.0),
    chapter01.render_scaling(64, 10**8, 10.0, 10.0, 100.0),
):
    style.png(figure)
print(sorted(used))
"""


def test_N20_only_dejavu_is_asked_for_and_nothing_is_written_to_stderr():
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", EVERYTHING],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stderr == ""
    assert run.stdout.strip() in ("['DejaVu Sans']", "['DejaVu Sans', 'DejaVu Sans Mono']")


def test_a_finding_is_a_sentence():
    figure = style.finding(style.new_figure(), "The ring  sends\nless.")
    assert figure.get_label() == "The ring sends less."
    with pytest.raises(ValueError, match="ends with a full stop, got 'less'"):
        style.finding(figure, "less")


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (25e6, "25 MB"),
        (1.5e9, "1.5 GB"),
        (999.9e6, "1 GB"),
        (2.5e15, "2500 TB"),
    ],
)
def test_bytes_are_written_in_decimal_units(num_bytes, text):
    assert style.bytes_text(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.5, "1.5 s"), (0.07, "70 ms"), (0.00002, "20 us"), (0, "0 us")]
)
def test_seconds_are_written_in_the_unit_that_suits_them(seconds, text):
    assert style.seconds_text(seconds) == text
