"""Memory, seconds and bytes against k: the artists say what the data say."""

import pytest

from pedagogy.plots.accumulation import accumulation_figure

KS = [1, 2, 4]
MEMORY = {"parameters": [10, 10, 10], "gradients": [0, 10, 10], "activations": [80, 40, 20]}
SECONDS = [1.0, 1.2, 1.6]
SENT = {"once a window": [6, 6, 6], "for each micro-batch": [6, 12, 24]}


def tops(ax, gid):
    (collection,) = [one for one in ax.collections if one.get_gid() == gid]
    corners = [box for path in collection.get_paths() for box in path.vertices.reshape(-1, 5, 2)]
    return [(box[0, 1], box[1, 1]) for box in corners]


def test_kinds_are_stacked_and_lines_follow_the_values():
    figure = accumulation_figure(KS, MEMORY, SECONDS, SENT, measured=[1.1, 1.2, 1.7])
    memory, seconds, sent = figure.axes
    assert tops(memory, "parameters") == [(0, 10)] * 3
    assert tops(memory, "gradients") == [(10, 10), (10, 20), (10, 20)]
    assert tops(memory, "activations") == [(10, 90), (20, 60), (20, 40)]
    found = {line.get_gid(): list(line.get_ydata()) for ax in (seconds, sent) for line in ax.lines}
    assert found == {"seconds": SECONDS, "measured": [1.1, 1.2, 1.7], **SENT}
    assert [tick.get_text() for tick in memory.get_xticklabels()] == ["1", "2", "4"]
    assert figure.get_label() == (
        "With k = 4 the peak is 40 bytes (44% of k = 1) and a window takes 1.6 s (1.60 times); a "
        "rank sends 6 bytes once a window, 24 bytes for each micro-batch."
    )


def test_a_chosen_k_is_framed_and_a_limit_that_nothing_fits_is_said():
    figure = accumulation_figure(KS, MEMORY, SECONDS, SENT, limit=30, chosen=2)
    assert tops(figure.axes[0], "chosen") == [(0, 60)]
    (limit,) = [line for line in figure.axes[0].lines if line.get_gid() == "limit"]
    assert limit.get_ydata()[0] == 30
    assert figure.get_label().startswith("With k = 2 the peak is 60 bytes (67% of k = 1)")
    assert figure.get_label().endswith("No k fits 30 bytes.")
    fits = accumulation_figure(KS, MEMORY, SECONDS, SENT, limit=40).get_label()
    assert "No k fits" not in fits


def test_one_rank_sends_nothing_and_the_finding_is_silent_about_it():
    silent = {name: [0, 0, 0] for name in SENT}
    assert "sends" not in accumulation_figure(KS, MEMORY, SECONDS, silent).get_label()


def test_series_of_another_length_are_refused():
    with pytest.raises(ValueError, match=r"3 values of k, but \{'seconds': 2\}"):
        accumulation_figure(KS, MEMORY, SECONDS[:2], SENT)
