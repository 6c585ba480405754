"""The command line: what may be typed, which function does it, and how an error is reported.

Exit codes: 0 done, 1 it could not be done (one line on stderr says why), 2 typed wrongly.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pedagogy import __version__
from pedagogy.cli.chapters import CommandError


def main(arguments: Sequence[str] | None = None) -> int:
    """The command is carried out; the result is its exit code."""
    options = _parser().parse_args(arguments)
    try:
        return options.run(options) or 0
    except CommandError as error:
        print(f"pedagogy {options.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"pedagogy {options.command}: stopped", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pedagogy", description="A workbook on the techniques for training large models."
    )
    parser.add_argument("--version", action="version", version=f"pedagogy {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    doctor = commands.add_parser("doctor", help="say what this machine offers and what is chosen")
    doctor.set_defaults(run=_doctor)

    lab = commands.add_parser("lab", help="copy the chapters to a folder of yours and open them")
    lab.add_argument("--folder", type=Path, default=Path("workbook"), help="default: ./workbook")
    lab.add_argument("--port", type=int, help="the port that JupyterLab tries first")
    lab.add_argument("--no-browser", action="store_true", help="print the address, open nothing")
    lab.set_defaults(run=_lab)

    run = commands.add_parser("run", help="execute one chapter and write an HTML report")
    run.add_argument("chapter", metavar="CHAPTER", help='for example "00a" or "01"')
    run.add_argument("--output", type=Path, help="default: reports/<chapter>.html")
    run.set_defaults(run=_run)

    bench = commands.add_parser("bench", help="measure this package against PyTorch's own")
    bench.add_argument("names", nargs="*", metavar="ROW", help="default: all rows")
    bench.add_argument("--pairs", type=int, default=20, help="pairs per row (default: 20)")
    bench.add_argument("--list", action="store_true", help="list the rows, run nothing")
    bench.set_defaults(run=_bench)

    refresh = commands.add_parser("refresh", help="for maintainers: re-execute and normalise")
    refresh.add_argument("notebooks", nargs="*", type=Path, help="default: all chapters")
    refresh.add_argument(
        "--fresh", action="store_true", help="also replace outputs that hold measured times"
    )
    refresh.set_defaults(run=_refresh)
    return parser


def _doctor(options: argparse.Namespace) -> None:
    from pedagogy.ranks import doctor

    print(doctor())


def _lab(options: argparse.Namespace) -> int:
    from pedagogy.cli.lab import copy_chapters, open_lab

    for line in copy_chapters(options.folder):
        print(line)
    return open_lab(options.folder, options.port, not options.no_browser)


def _run(options: argparse.Namespace) -> None:
    from pedagogy.cli.report import write_report

    print(f"report: {write_report(options.chapter, options.output)}")


def _bench(options: argparse.Namespace) -> None:
    from pedagogy.cli.bench import print_list, print_table

    if options.list:
        print_list()
    else:
        print_table(options.names, options.pairs)


def _refresh(options: argparse.Namespace) -> None:
    from pedagogy.cli.chapters import chapters
    from pedagogy.cli.refresh import refresh

    for path in options.notebooks or chapters():
        changed = refresh(path, fresh=options.fresh)
        print(f"{path.name}: {'rewritten' if changed else 'unchanged'}")
