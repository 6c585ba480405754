"""The tensors of these tests are tiny: a second thread costs more than it does."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """In this process; workers set their own."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
