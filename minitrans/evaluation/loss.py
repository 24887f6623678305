"""Cross-entropy and perplexity of a model on a corpus.

    loss = -1/n sum_i log P(y_i | y_<i, x)   over all n target tokens, end tokens counted, in nats
    perplexity = exp(loss)

Every token weighs the same, whatever batch it is in. Labels are not smoothed.

Letters: B batch, S source length, T target length, D d_model.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from minitrans.data.batching import evaluation_batches, padded
from minitrans.data.tokenizer import PAD_ID, Tokenizers
from minitrans.decoding.translator import TranslationModel, evaluating, require_positions
from minitrans.processes import ALONE, Processes


@dataclass(frozen=True)
class Loss:
    """Attributes
    ----------
    per_token
        Mean cross-entropy of a target token, nats.
    num_tokens
        Target tokens, end tokens counted.
    """

    per_token: float
    num_tokens: int

    @property
    def perplexity(self) -> float:
        """exp(loss); infinite where that is more than a float holds."""
        return math.exp(self.per_token) if self.per_token < 700 else math.inf


def corpus_loss(
    model: TranslationModel,
    tokenizers: Tokenizers,
    src_lines: Sequence[str],
    tgt_lines: Sequence[str],
    batch_tokens: int = 4096,
    name: str = "the corpus",
    processes: Processes = ALONE,
) -> Loss:
    """Score the references of every line, blank ones too.

    Parameters
    ----------
    model
        Put into evaluation mode here, and back afterwards.
    batch_tokens
        Padded tokens of one batch, the longer side counted.
    name
        What the lines belong to, for errors.
    processes
        Those that share the batches: every one makes the same call, and gets the same loss.

    Raises
    ------
    UserError
        A line that has more tokens than the model has positions for.
    """
    src, tgt = tokenizers.src.encode(src_lines), tokenizers.tgt.encode(tgt_lines)
    require_positions(src, model.src_limit, f"the source of {name}")
    require_positions(tgt, model.tgt_limit, f"the target of {name}")
    lengths = np.array([(len(s) + 1, len(t) + 1) for s, t in zip(src, tgt, strict=True)])  # (n, 2)
    with evaluating(model):
        sums = processes.map(
            lambda rows: batch_loss(model, [src[row] for row in rows], [tgt[row] for row in rows]),
            evaluation_batches(lengths, batch_tokens),
        )
    total = sum(sums)  # in the order of the batches, whoever computed them
    num_tokens = int(lengths[:, 1].sum())
    return Loss(total / num_tokens, num_tokens)


@torch.no_grad()
def batch_loss(model: TranslationModel, src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]]) -> float:
    """Summed cross-entropy of one batch of encoded pairs, nats."""
    device = next(model.parameters()).device
    src_ids = padded(src, end=True).to(device)  # (B, S)
    src_mask = (src_ids != PAD_ID).unsqueeze(1)  # (B, 1, S)
    memory = model.encode(src_ids, src_mask)  # (B, S, D)
    states = model.decode(padded(tgt, start=True).to(device), memory, src_mask)  # (B, T, D)
    _, plain = model.nll(states, padded(tgt, end=True).to(device))
    return float(plain)
