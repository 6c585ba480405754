"""What a chapter calls to look right: `setup` at its top, `show` for code and pictures.

Three rules of the notebooks meet here.

*Code shown is the code run.* `show(pipeline.gpipe)` prints the source of the very object that the
next cell calls. The source is also the output's plain text, which the tests compare, so a chapter
whose stored output is stale fails.

*A picture states what it shows.* `show(figure)` stores one PNG with alternative text. By default
that text is the figure's label, the sentence that states its finding; a figure that has none is
refused. The bytes depend on nothing but the figure: no date, no version of matplotlib.

*A chapter starts anywhere.* `FIRST_CELL` is the text of every chapter's first code cell. Where the
package is missing (Colab) it installs it without its dependencies, so that the torch and the
ipywidgets that are there stay as they are; `setup` then says by name what is missing or too old.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import io
import re
import sys
import textwrap
import warnings
from typing import Any

REPOSITORY = "https://github.com/OWNER/pedagogy"

FIRST_CELL = f"""\
import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

if importlib.util.find_spec("pedagogy") is None:  # on Colab, for example
    wheels = sorted(Path.cwd().glob("pedagogy-*.whl"))
    source = str(wheels[-1]) if wheels else "git+{REPOSITORY}"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", source]
    subprocess.run(pip, check=True)  # --no-deps: torch and ipywidgets stay as they are
    importlib.invalidate_caches()

from pedagogy.notebook import setup

setup()"""

MAX_PICTURE_BYTES = 200_000
PICTURE_DPI = 100

# Each entry is one known warning that a reader can do nothing about: (category, start of the
# message). torch renames its collectives, and the new names are missing from older versions.
QUIET_WARNINGS: tuple[tuple[type[Warning], str], ...] = (
    (FutureWarning, r"`torch\.distributed\.\w+` is deprecated"),
)


def colab_badge(name: str) -> str:
    """The Markdown badge that opens the notebook file `name` on Colab."""
    path = REPOSITORY.removeprefix("https://github.com/")
    target = f"https://colab.research.google.com/github/{path}/blob/main/notebooks/{name}"
    picture = "https://colab.research.google.com/assets/colab-badge.svg"
    return f"[![Open in Colab]({picture})]({target})"


def setup() -> None:
    """The kernel is ready for a chapter; nothing is printed, and calling it twice changes nothing.

    Known warnings are silenced (QUIET_WARNINGS), pictures that a reader draws with pyplot have the
    workbook's style, and IPython keeps no result alive in its `Out` history, so that a deleted
    tensor is really freed.

    Raises: RuntimeError if something that the package needs is missing or too old.
    """
    unmet = _unmet_requirements()
    if unmet:
        raise RuntimeError(
            f"pedagogy needs {', '.join(unmet)}, which this kernel lacks. Install exactly that: "
            f"pip install {' '.join(repr(one) for one in unmet)}"
        )
    for category, message in QUIET_WARNINGS:
        warnings.filterwarnings("ignore", message=message, category=category)
    _apply_style()
    _prepare_ipython()


def show(thing: Any, *more: Any, alt: str | None = None, folded: bool = False) -> None:
    """Each thing is displayed: a function, class or module as its source, a Figure as one picture.

    `alt` replaces a figure's label as its alternative text. `folded` hides source behind a line
    that a click opens.

    Raises: ValueError for a figure without alternative text or above 200 kB, or one `alt` for
    several things; TypeError for anything that is neither source nor figure.
    """
    from IPython.display import display

    things = (thing, *more)
    if alt is not None and len(things) > 1:
        raise ValueError(f"one alt text was given for {len(things)} things; show them one by one")
    for one in things:
        data, metadata = _bundle(one, alt, folded)
        display(data, metadata=metadata, raw=True)


def _bundle(thing: Any, alt: str | None, folded: bool) -> tuple[dict, dict]:
    if hasattr(thing, "savefig"):
        return _picture(thing, alt)
    thing = inspect.unwrap(thing) if callable(thing) else thing
    if inspect.isroutine(thing) or inspect.isclass(thing) or inspect.ismodule(thing):
        return _source(thing, folded), {}
    raise TypeError(f"show takes a function, a class, a module or a Figure, not {type(thing)}")


def _source(thing: Any, folded: bool) -> dict:
    source = textwrap.dedent(inspect.getsource(thing)).rstrip()
    ticks = max((len(run) for run in re.findall("`+", source)), default=0)
    fence = "`" * max(3, ticks + 1)
    block = f"{fence}python\n{source}\n{fence}"
    if folded:
        summary = f"<summary>The code of <code>{thing.__name__}</code></summary>"
        block = f"<details>{summary}\n\n{block}\n\n</details>"
    return {"text/plain": source, "text/markdown": block}


def _picture(figure: Any, alt: str | None) -> tuple[dict, dict]:
    alt = (alt if alt is not None else figure.get_label() or "").strip()
    if not alt:
        raise ValueError(
            "this figure has no alternative text: give show(figure, alt=...) the sentence that "
            "states its finding, or set it with figure.set_label(...)"
        )
    png = _png(figure)
    if len(png) > MAX_PICTURE_BYTES:
        raise ValueError(
            f"this picture has {len(png):,} bytes, and {MAX_PICTURE_BYTES:,} are allowed: draw it "
            "smaller or with fewer points"
        )
    _forget(figure)
    data = {"text/plain": f"[figure] {alt}", "image/png": png}
    return data, {"image/png": {"alt": alt}}


def _png(figure: Any) -> bytes:
    """The picture's bytes; the same figure gives the same bytes on each call."""
    from pedagogy.plots.style import with_palette

    buffer = io.BytesIO()
    figure.savefig(
        buffer,
        format="png",
        dpi=min(figure.dpi, PICTURE_DPI),
        metadata={"Software": None},
    )
    return with_palette(buffer.getvalue())


def _forget(figure: Any) -> None:
    """pyplot, if it made this figure, will not draw it a second time below the cell."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    number = getattr(figure, "number", None)
    if pyplot is not None and number is not None and pyplot.fignum_exists(number):
        pyplot.close(figure)


def _unmet_requirements() -> list[str]:
    """The package's requirements (PEP 508, extras apart) that this environment does not meet."""
    from packaging.requirements import Requirement

    try:
        wanted = importlib.metadata.requires("pedagogy") or []
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return []
    unmet = []
    for requirement in map(Requirement, wanted):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            version = None
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            unmet.append(f"{requirement.name}{requirement.specifier}")
    return unmet


def _apply_style() -> None:
    import matplotlib

    from pedagogy.plots.style import SETTINGS

    matplotlib.rcParams.update(SETTINGS)


def _prepare_ipython() -> None:
    from IPython import get_ipython

    shell = get_ipython()
    if shell is None:  # a script or a test
        return
    shell.displayhook.cache_size = 0
    shell.displayhook.do_full_cache = 0
