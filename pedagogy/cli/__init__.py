"""The command `pedagogy`: doctor, lab, run, bench, refresh.

`command.py` parses and reports errors; each of the other files does one command's work and can be
called from Python as well.
"""

from pedagogy.cli.command import main

__all__ = ["main"]
