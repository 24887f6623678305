"""Models of others with this experiment's shape, to be trained by a plain loop.

Letters: B batch, S source length, T target length, D d_model, N vocabulary.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from minitrans.benchmark.peers import is_installed, not_measured
from minitrans.config import ModelConfig
from minitrans.data.tokenizer import END_ID, PAD_ID, START_ID
from minitrans.model.positions import sinusoidal_table

LONGEST = 1024  # tokens that a rival has positions for


@dataclass(frozen=True)
class Rival:
    """A model to train.

    Attributes
    ----------
    name
        For the table.
    module
        What it needs installed.
    build
        Shape and vocabulary size to a module: (B, S) source and (B, T) decoder input -> logits (B, T, N).
    """

    name: str
    module: str
    build: Callable[[ModelConfig, int], nn.Module]


class TorchTransformer(nn.Module):
    """``torch.nn.Transformer`` with embeddings tied three ways, after PyTorch's tutorial.

    It drops attention weights and hidden units at the one rate that it has.
    """

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, config.d_model, padding_idx=PAD_ID)
        nn.init.normal_(self.embedding.weight, std=config.d_model**-0.5)
        with warnings.catch_warnings():
            # It tells that pre-norm has no fast path in evaluation; here it is trained.
            warnings.filterwarnings("ignore", "enable_nested_tensor", UserWarning)
            self.transformer = nn.Transformer(
                config.d_model,
                config.num_heads,
                config.num_encoder_layers,
                config.num_decoder_layers,
                config.d_ff,
                config.dropout,
                norm_first=config.norm_order == "pre",
                batch_first=True,
            )
        self.output = nn.Linear(config.d_model, vocab_size, bias=False)
        self.output.weight = self.embedding.weight
        self.register_buffer("positions", sinusoidal_table(LONGEST, config.d_model))
        self.dropout = nn.Dropout(config.dropout)
        self.scale = math.sqrt(config.d_model)

    def _embed(self, ids: Tensor) -> Tensor:
        """(B, T) -> (B, T, D)."""
        return self.dropout(self.embedding(ids) * self.scale + self.get_buffer("positions")[: ids.size(1)])

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        """(B, S), (B, T) -> logits (B, T, N)."""
        length = tgt.size(1)
        future = torch.triu(torch.ones(length, length, dtype=torch.bool, device=tgt.device), 1)  # (T, T)
        states = self.transformer(
            self._embed(src),
            self._embed(tgt),
            tgt_mask=future,
            src_key_padding_mask=src == PAD_ID,
            tgt_key_padding_mask=tgt == PAD_ID,
            memory_key_padding_mask=src == PAD_ID,
        )
        return self.output(states)  # (B, T, D) -> (B, T, N)


def marian_model(config: ModelConfig, vocab_size: int) -> nn.Module:
    """Hugging Face's ``MarianMTModel`` with random weights and this shape."""
    from transformers import MarianConfig, MarianMTModel

    return MarianMTModel(
        MarianConfig(
            vocab_size=vocab_size,
            decoder_vocab_size=vocab_size,
            max_position_embeddings=LONGEST,
            d_model=config.d_model,
            encoder_layers=config.num_encoder_layers,
            decoder_layers=config.num_decoder_layers,
            encoder_attention_heads=config.num_heads,
            decoder_attention_heads=config.num_heads,
            encoder_ffn_dim=config.d_ff,
            decoder_ffn_dim=config.d_ff,
            dropout=config.dropout,
            attention_dropout=config.attention_dropout,
            activation_dropout=config.ffn_dropout,
            activation_function="relu",
            scale_embedding=True,
            init_std=config.d_model**-0.5,
            pad_token_id=PAD_ID,
            eos_token_id=END_ID,
            bos_token_id=START_ID,
            decoder_start_token_id=START_ID,
            forced_eos_token_id=None,
            share_encoder_decoder_embeddings=True,
            tie_word_embeddings=True,
        )
    )


class Marian(nn.Module):
    """:func:`marian_model` with the face of a rival."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.model = marian_model(config, vocab_size)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        """(B, S), (B, T) -> logits (B, T, N)."""
        mask = src != PAD_ID  # (B, S)
        return self.model(
            input_ids=src, attention_mask=mask, decoder_input_ids=tgt, use_cache=False
        ).logits  # (B, T, N)


_RIVALS = (
    Rival("torch.nn.Transformer", "torch", TorchTransformer),
    Rival("Hugging Face Marian", "transformers", Marian),
)


def rivals() -> list[Rival]:
    """Those that are installed."""
    return [rival for rival in _RIVALS if is_installed(rival.module)]


def absent() -> list[str]:
    """A sentence for each that is not installed."""
    return [not_measured(rival.name, rival.module) for rival in _RIVALS if not is_installed(rival.module)]
