"""Where code runs: `launch` starts ranks, `Group` is how they talk, `Trace` is what happened."""

from pedagogy.ranks.grid import grid
from pedagogy.ranks.group import Group
from pedagogy.ranks.handle import Handle
from pedagogy.ranks.launch import Run, launch
from pedagogy.ranks.link import Copy, Link, host_buffer, open_link
from pedagogy.ranks.machine import doctor
from pedagogy.ranks.pace import Pace
from pedagogy.ranks.report import HangError, RankError
from pedagogy.ranks.trace import Event, Trace

__all__ = [
    "Copy",
    "Event",
    "Group",
    "Handle",
    "HangError",
    "Link",
    "Pace",
    "RankError",
    "Run",
    "Trace",
    "doctor",
    "grid",
    "host_buffer",
    "launch",
    "open_link",
]
