"""An explorer for a test: `parametrize("explorer", [factory], indirect=True)`."""

import pytest


@pytest.fixture
def explorer(request):
    """What the factory makes, closed afterwards."""
    made = request.param()
    yield made
    made.close()
