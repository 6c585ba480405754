"""Importing a room costs nothing until something in it is used."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

ROOMS = ["measure", "workloads", "parameters"]


@pytest.mark.parametrize("room", ROOMS)
def test_importing_a_room_does_not_import_torch(room):
    code = f"import sys, pedagogy.{room}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("room", ROOMS)
def test_every_promised_name_is_there_and_no_other(room):
    package = importlib.import_module(f"pedagogy.{room}")
    assert all(getattr(package, name) is not None for name in package.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        package.nonsense  # noqa: B018
