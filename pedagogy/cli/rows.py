"""The rows of `pedagogy bench`: each names our function, PyTorch's, and the ranks they run on."""

from pedagogy.cli.bench import Row

ROWS: list[Row] = []
