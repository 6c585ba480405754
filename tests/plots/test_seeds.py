"""Each rule has a panel, over the same reference, and equal dashes are equal seeds."""

from pedagogy.plots import seeds_figure

X = [0, 1, 2]
FLUSH = ("flush", (X, [[3.0, 2.0, 1.0], [3.0, 2.5, 2.0]]))
RULES = {
    "late": (X, [[3.0, 2.5, 2.0], [3.0, 2.75, 2.5]]),
    "later": ([0, 2], [[3.0, 2.75], [3.0, 3.5]]),
}


def panels():
    return seeds_figure(RULES, FLUSH, "Late is worse.", x_label="updates", y_label="loss").axes


def lines(ax):
    return {line.get_gid(): line for line in ax.get_lines()}


def test_every_panel_shows_one_rule_and_the_reference_with_one_line_for_each_seed():
    for ax, (name, (x, runs)) in zip(panels(), RULES.items(), strict=True):
        assert ax.get_title(loc="left") == name
        found = lines(ax)
        assert len(found) == 4
        for seed in (0, 1):
            mine, reference = found[f"{name}, seed {seed}"], found[f"flush, seed {seed}"]
            assert (list(mine.get_xdata()), list(mine.get_ydata())) == (x, runs[seed])
            assert list(reference.get_ydata()) == FLUSH[1][1][seed]
            assert mine.get_linestyle() == reference.get_linestyle()
        assert len({line.get_linestyle() for line in found.values()}) == 2


def test_the_panels_share_their_axes_so_that_rules_can_be_compared():
    first, second = panels()
    assert first.get_ylim() == second.get_ylim()
    assert first.get_xlim() == second.get_xlim()


def test_each_rule_is_named_once_right_of_where_its_lines_end():
    for ax, name in zip(panels(), RULES, strict=True):
        assert sorted(text.get_text() for text in ax.texts) == sorted(["flush", name])
        assert all(text.xy[0] > 1 for text in ax.texts)
        assert {text.get_text(): text.xy[1] for text in ax.texts}["flush"] < 0.5
