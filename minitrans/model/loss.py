"""Label-smoothed cross-entropy, summed over real target tokens.

Letters: B batch, T target length, D d_model, N vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy_sums(
    states: Tensor, weight: Tensor, targets: Tensor, label_smoothing: float = 0.0, pad_id: int = 0
) -> tuple[Tensor, Tensor]:
    """Σ over real tokens of (1 - ε) · nll + ε · mean over the vocabulary of -log p.

    with log p = log softmax(states · weightᵀ) and nll = -log p[target] (Szegedy et al. 2016, section 7).

    Parameters
    ----------
    states
        (B, T, D).
    weight
        (N, D) the output matrix.
    targets
        (B, T) ids; positions that hold ``pad_id`` count for nothing.
    label_smoothing
        ε.

    Returns
    -------
    smoothed
        Scalar, float32 (float64 where the states are), with a gradient; 0 where everything is padding.
    nll
        The same without: the sum at ε = 0, whatever ε is.
    """
    logits = F.linear(states, weight)  # (B, T, D) -> (B, T, N)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    log_probs = logits.log_softmax(dim=-1)
    real = targets != pad_id  # (B, T)
    nll = -log_probs.gather(-1, targets.unsqueeze(-1)).squeeze(-1).masked_select(real).sum()
    spread = -log_probs.mean(dim=-1).masked_select(real).sum()  # (B, T, N) -> (B, T) -> scalar
    return (1 - label_smoothing) * nll + label_smoothing * spread, nll.detach()
