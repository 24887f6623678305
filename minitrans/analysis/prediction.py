r"""What the theory predicts: rows whose logits are independent, normal, and of one variance.

Letters: S keys, R rows drawn.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from minitrans.analysis.softmax import is_saturated, row_entropy

ROWS = 1024  # drawn for each number of keys
_SEED = 1


@dataclass(frozen=True)
class PredictedRows:
    """Means over rows: entropy in nats, share of saturated ones."""

    entropy: float
    saturated: float


def predict_rows(variance: float, key_counts: Mapping[int, int]) -> PredictedRows:
    """Entropy and saturation of rows softmax(z), z_s independent and normal with mean 0 and this variance.

    Found by drawing :data:`ROWS` rows for each number of keys, the same ones for every variance.

    Parameters
    ----------
    variance
        Of the logits, the factor taken in: 1 for components of unit variance with the factor 1/√d_k, and
        d_k for them without it.
    key_counts
        Number of keys that a query sees -> how many queries see so many.
    """
    total = sum(key_counts.values())
    if not total or not math.isfinite(variance):
        return PredictedRows(math.nan, math.nan)
    entropy = saturated = 0.0
    for num_keys, queries in sorted(key_counts.items()):
        generator = torch.Generator().manual_seed(_SEED)
        drawn = torch.randn(ROWS, num_keys, generator=generator, dtype=torch.float64)  # (R, S)
        weights = (math.sqrt(max(variance, 0.0)) * drawn).softmax(dim=-1)  # (R, S)
        entropy += queries * float(row_entropy(weights).mean())
        saturated += queries * float(is_saturated(weights).double().mean())
    return PredictedRows(entropy / total, saturated / total)
