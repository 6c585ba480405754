"""The checks notice compression that is wrong by one line, and nothing else."""

import pytest
import torch

from tests.compression.mutants import MUTANTS, mutant, original
from tests.compression.test_channels import FOLLOWING, check_chain
from tests.compression.test_distillation import check_loss
from tests.compression.test_files import MASKS, filled, shared
from tests.compression.test_huffman import check_code
from tests.compression.test_low_rank import check_break_even, check_error, check_no_better
from tests.compression.test_pruning import (
    OPTIMIZERS,
    check_iterative,
    check_kernels,
    check_mask,
    check_masks_survive,
)
from tests.compression.test_pruning import random as numbers
from tests.compression.test_quantization import check_binary, check_clamp, check_nearest, check_sign
from tests.compression.test_sharing import (
    check_against_loop,
    check_against_scikit,
    check_error_never_grows,
    check_finite,
    check_gradient,
)


def check_masks_of(mask_of):
    weight, ties = numbers((5, 7)), torch.tensor([1.0, -1, 1, 1, -1, 1])
    for sparsity in (0.25, 0.5):
        check_mask(mask_of, weight, sparsity)
        check_mask(mask_of, weight, sparsity, (numbers((5, 7), 1) > 0).float())
        check_mask(mask_of, ties, sparsity)


def check_masks(masks):
    check_masks_survive(masks, OPTIMIZERS["Adam"])
    check_iterative(masks, OPTIMIZERS["momentum"])


def check_channels(prune):
    for following in FOLLOWING:
        for fraction in (0, 0.5):
            check_chain(prune, fraction, following=following)


def check_sharing(share):
    check_against_scikit(share, 5, 0)
    check_against_loop(share, 0)
    check_finite(share)
    for start in (None, torch.tensor([3.0, 80, 1, 60])):
        check_error_never_grows(share, numbers((300,)) ** 3, 4, start)


def check_huffman(module):
    for symbols in ([0] * 9 + [1] * 4 + [2, 3, 3, 5], [5, 5], [1, 2, 3, 4]):
        check_code(module, symbols)


def check_files(module):
    for name, mask in MASKS.items():
        for with_huffman in (True, False):
            value = shared(mask, 5)
            sections, entry = module._sections(module.Shared(*value), 5, with_huffman)
            found = module._tensor(sections, entry)
            assert torch.equal(found, filled(value)), name
            kept = int((mask != 0).sum())
            assert with_huffman or len(sections["codes"]) == -(-3 * kept // 8)
    integers = torch.tensor([[-3, 0], [2, 3]], dtype=torch.int16)
    packed = module._sections(module.Packed(integers, torch.tensor(0.5), 3), 5, True)
    assert torch.equal(module._tensor(*packed), integers * 0.5)


def check_low_rank(make):
    check_error(make, 4, 7, 2)
    check_no_better(make)


def check_integers(to_integers):
    for bits in (2, 5, 16):
        check_nearest(to_integers, numbers((5, 7), bits), bits)
        check_nearest(to_integers, -numbers((5, 7), bits).abs(), bits)


CHECKS = {
    "magnitude_mask": check_masks_of,
    "Masks": check_masks,
    "prune_kernels": lambda prune: check_kernels(prune, 0.5),
    "prune_channels": check_channels,
    "share_weights": check_sharing,
    "SharedWeight": check_gradient,
    "pedagogy.compression.huffman": check_huffman,
    "pedagogy.compression.files": check_files,
    "low_rank": check_low_rank,
    "break_even_rank": check_break_even,
    "to_integers": check_integers,
    "sign": check_sign,
    "binarize": lambda binarize: check_binary(binarize, by_output=True),
    "clamp_latent": check_clamp,
    "distillation_loss": lambda loss: check_loss(loss, 4.0, 0.3),
}


def check(name, changed):
    CHECKS[original(name).__name__](changed)


@pytest.mark.filterwarnings("ignore:reduction")  # PyTorch warns of one of them, too
@pytest.mark.parametrize("name", MUTANTS)
def test_the_check_notices_the_mutant(name):
    with pytest.raises((AssertionError, ValueError, IndexError, RuntimeError)):
        check(name, mutant(name))


def test_it_has_nothing_to_say_of_the_originals():
    seen = {original(name).__name__: name for name in MUTANTS}
    assert set(seen) == set(CHECKS)
    for name in seen.values():
        check(name, original(name))
