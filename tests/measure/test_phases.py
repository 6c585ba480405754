"""The phases of a step are timed by themselves, and the model is trained on the way."""

from __future__ import annotations

import pytest
import torch

from pedagogy.measure import PHASES, phase_seconds
from pedagogy.workloads import GPT, text_batch


def tiny():
    model = GPT(layers=1, hidden=8, heads=2, sequence=8)
    return model, torch.optim.Adam(model.parameters())


def test_each_phase_has_a_positive_time_and_every_repeat_is_one_update():
    model, optimizer = tiny()
    threads = torch.get_num_threads()
    times = phase_seconds(model, optimizer, text_batch(2, 8), repeats=3)
    assert torch.get_num_threads() == threads
    assert tuple(times) == PHASES
    assert all(seconds > 0 for seconds in times.values())
    steps = {int(state["step"]) for state in optimizer.state.values()}
    assert steps == {4}  # one that is not counted, and three
    assert all(p.grad is None for p in model.parameters())


def test_no_repeats_are_refused():
    with pytest.raises(ValueError, match="0 repeats: at least 1"):
        phase_seconds(*tiny(), text_batch(2, 8), repeats=0)
