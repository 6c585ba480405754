"""Mixed precision: 16 bits where they do no harm, fp32 where they would.

Read in this order: `formats`, `ranges`, `master_weights`, `loss_scale`, `dot`.
"""

from pedagogy.precision.dot import dot, matmul
from pedagogy.precision.formats import FORMATS, Format, bit_fields, format_of, round_to
from pedagogy.precision.loss_scale import (
    DynamicLossScaler,
    StaticLossScaler,
    all_finite,
    anywhere,
    gradients_of,
)
from pedagogy.precision.master_weights import MasterWeights
from pedagogy.precision.ranges import KINDS, range_shares

__all__ = [
    "FORMATS",
    "KINDS",
    "DynamicLossScaler",
    "Format",
    "MasterWeights",
    "StaticLossScaler",
    "all_finite",
    "anywhere",
    "bit_fields",
    "dot",
    "format_of",
    "gradients_of",
    "matmul",
    "range_shares",
    "round_to",
]
