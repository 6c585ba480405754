"""Real data that every machine already has: Python's documentation and scanned digits.

Why it exists
-------------
A technique for training is only convincing on data that has structure: noise hides a wrong
gradient, because no loss would fall anyway. Downloads break in classrooms. So the text is the
reference documentation that ships with Python itself (`pydoc_data.topics`, about 460,000
characters, read as bytes: the vocabulary is 256), and the digits are the 1,797 scans of 8 by 8
pixels that ship with scikit-learn.

How batches are drawn
---------------------
A batch is a function of `(seed, step)` and of nothing else. It does not depend on the number of
ranks, on the number of micro-batches or on what was drawn before. A run on 4 ranks draws the same
global batch as one process and each rank takes its slice, which is what makes "equal to one
process" a statement that can be tested. Both draw with replacement: two steps are independent,
and there is no epoch to keep count of.

What may differ
---------------
The text differs between versions of Python. Never print a fact that depends on it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

NUM_TRAINING_DIGITS = 1437  # of 1,797: four fifths


@lru_cache(maxsize=1)
def text() -> torch.Tensor:
    """All topics of Python's documentation, sorted by name and joined, as bytes.

    **Shapes** `(bytes,)`, uint8. Shared between callers: do not write into it.
    """
    from pydoc_data.topics import topics

    joined = "\n".join(topics[name] for name in sorted(topics))
    return torch.frombuffer(bytearray(joined.encode("utf-8")), dtype=torch.uint8)


def text_batch(
    batch: int, sequence: int, seed: int = 0, step: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Windows of the text at random places; a target is the byte that follows its input.

    **Shapes** inputs and targets: `(batch, sequence)`, int64, values 0 to 255.
    **Raises** ValueError if a size is not positive, or the text is shorter than a window.
    """
    corpus = text()
    longest = len(corpus) - 1
    if batch < 1 or not 1 <= sequence <= longest:
        raise ValueError(
            f"batch {batch} and sequence {sequence}: batch must be at least 1, "
            f"and sequence between 1 and {longest} (the text less one byte)"
        )
    starts = np.random.default_rng([seed, step]).integers(0, longest - sequence + 1, size=batch)
    windows = torch.stack([corpus[start : start + sequence + 1] for start in starts.tolist()])
    windows = windows.long()  # (batch, sequence + 1)
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


@lru_cache(maxsize=1)
def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The digits as train_x, train_y, test_x, test_y, shuffled once and for all.

    Images have mean 0 and standard deviation 1 over all pixels of the training images; the test
    images are moved by the same two numbers. Shared between callers: do not write into them.

    **Shapes** images `(1437 or 360, 1, 8, 8)`, float32; labels `(1437 or 360,)`, int64.
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)  # (1797, 64), values 0 to 16, by writer
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images[order].reshape(-1, 1, 8, 8), labels[order]
    train = images[:NUM_TRAINING_DIGITS]
    images = (images - train.mean()) / train.std()
    x, y = torch.from_numpy(images).float(), torch.from_numpy(labels).long()
    cut = NUM_TRAINING_DIGITS
    return x[:cut].clone(), y[:cut].clone(), x[cut:].clone(), y[cut:].clone()


def digits_batch(batch: int, seed: int = 0, step: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Training digits drawn at random.

    **Shapes** images `(batch, 1, 8, 8)`, float32; labels `(batch,)`, int64.
    **Raises** ValueError if batch is not positive.
    """
    if batch < 1:
        raise ValueError(f"batch {batch}: must be at least 1")
    train_x, train_y, _, _ = digits()
    drawn = np.random.default_rng([seed, step]).integers(0, len(train_x), size=batch)
    chosen = torch.from_numpy(drawn)
    return train_x[chosen], train_y[chosen]
