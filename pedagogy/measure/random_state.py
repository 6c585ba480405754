"""The state of every random generator that a training step may draw from.

Why it exists
-------------
A forward pass that is run twice must draw the same dropout mask twice, or its gradients belong to
another function; a resumed run must draw what the interrupted one would have drawn. There are
four places to look: Python's `random`, numpy's global generator, torch's CPU generator, and one
generator for each GPU. The GPUs are left out while CUDA is not initialised: asking would start a
context, which costs hundreds of megabytes.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def rng_state() -> dict[str, Any]:
    """A copy of the state of all generators, by name; drawing later does not change it."""
    return {
        "random": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
    }


def restore_rng_state(state: dict[str, Any]) -> None:
    """All generators continue as they would have from the moment of `rng_state()`.

    **Raises** ValueError if the state was taken with another number of GPUs than there are.
    """
    if len(state["cuda"]) not in (0, torch.cuda.device_count()):
        raise ValueError(
            f"this state was taken with {len(state['cuda'])} GPUs, "
            f"this machine has {torch.cuda.device_count()}"
        )
    random.setstate(state["random"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
