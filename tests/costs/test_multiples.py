"""The nearest numbers that fit, as every refusal names them."""

import pytest

from pedagogy.costs.multiples import check_divides, nearest_multiples


def test_the_neighbours_above_zero_are_named():
    assert nearest_multiples(9, 4) == "8 or 12"
    assert nearest_multiples(3, 4) == "4"


def test_the_first_size_that_does_not_fit_is_named():
    check_divides(2, heads=8, hidden=64)
    with pytest.raises(ValueError, match="heads is 9, which 2 ranks do not divide; 8 or 10 would"):
        check_divides(2, heads=9, hidden=63)
    with pytest.raises(ValueError, match="0 ranks: must be 1 or more"):
        check_divides(0, heads=8)
    with pytest.raises(ValueError, match="heads is 0: must be 1 or more"):
        check_divides(2, heads=0)
