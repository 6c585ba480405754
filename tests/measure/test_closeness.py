"""One rule of closeness for all chapters: a share of the largest element of the kind."""

import torch

from pedagogy.measure import all_close

RIGHT = {"large": torch.tensor([100.0, 1.0]), "small": torch.tensor([1e-9])}


def test_an_element_may_be_off_by_a_share_of_the_largest_of_all():
    mine = {name: tensor.clone() for name, tensor in RIGHT.items()}
    mine["small"] += 5e-5
    assert all_close(mine, RIGHT, 1e-6)
    assert not all_close(mine, RIGHT, 1e-7)


def test_a_part_of_the_names_is_enough_and_another_shape_is_not():
    assert all_close({"small": RIGHT["small"]}, RIGHT, 0.0)
    assert not all_close({"small": RIGHT["large"]}, RIGHT, 1e3)
