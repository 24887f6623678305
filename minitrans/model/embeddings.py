"""Token embeddings.

Letters: B batch, T length, D d_model, N vocabulary.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TokenEmbedding(nn.Module):
    """x = E[id] · √D (Vaswani et al. 2017, section 3.4).

    The rows of E have components of variance 1/D, right for E as an output matrix; √D brings the
    embeddings to variance 1, the size of the position encodings that are added to them.
    """

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model))
        nn.init.normal_(self.weight, std=d_model**-0.5)
        self.scale = math.sqrt(d_model)

    def forward(self, ids: Tensor) -> Tensor:
        """(B, T) ids -> (B, T, D)."""
        return F.embedding(ids, self.weight) * self.scale
