"""A workbook on the techniques for training large models, taught by running them.

Every technique has one implementation, in one folder of this package; the chapters in `notebooks/`
run it on real ranks, draw what happened, and let the reader change it.

This module imports nothing, so `import pedagogy` is cheap: import the room that you need, for
example `from pedagogy.ranks import launch`.
"""

__version__ = "0.1.0"
