"""Explorers: controls around a pure function that draws. Nothing here starts a rank."""

from pedagogy.widgets.explorer import Explorer, Try
from pedagogy.widgets.slow import SlowExplorer

__all__ = ["Explorer", "SlowExplorer", "Try"]
