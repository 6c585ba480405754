"""Mixed precision: 16 bits where they do no harm, fp32 where they would.

Read in this order: `formats`, `ranges`, `histograms`, `master_weights`, `loss_scale`, `dot`,
`schemes`.
"""

from pedagogy.precision.dot import dot, matmul
from pedagogy.precision.formats import FORMATS, Format, bit_fields, format_of, round_to
from pedagogy.precision.histograms import (
    GradientRecord,
    Histogram,
    histogram_of,
    record_gradients,
)
from pedagogy.precision.loss_scale import (
    DynamicLossScaler,
    StaticLossScaler,
    all_finite,
    anywhere,
    gradients_of,
)
from pedagogy.precision.master_weights import MasterWeights
from pedagogy.precision.ranges import range_shares
from pedagogy.precision.schemes import SCHEMES, SchemeRun, train_scheme

__all__ = [
    "FORMATS",
    "SCHEMES",
    "DynamicLossScaler",
    "Format",
    "GradientRecord",
    "Histogram",
    "MasterWeights",
    "SchemeRun",
    "StaticLossScaler",
    "all_finite",
    "anywhere",
    "bit_fields",
    "dot",
    "format_of",
    "gradients_of",
    "histogram_of",
    "matmul",
    "range_shares",
    "record_gradients",
    "round_to",
    "train_scheme",
]
