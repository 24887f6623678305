"""From a configuration and the sizes of the vocabularies to a model: a table of contents of the parts."""

from collections.abc import Mapping
from typing import TypeVar

from torch import nn

from minitrans.config import Experiment, ModelConfig, check_model, construct
from minitrans.errors import UserError, nearest
from minitrans.model.attention import ATTENTION, MultiHeadAttention, ScaledDotProductAttention
from minitrans.model.convolutional import (
    DILATIONS,
    ConvolutionalDecoder,
    ConvolutionalDecoderLayer,
    ConvolutionalEncoder,
    ConvolutionalEncoderLayer,
    ConvolutionalModel,
    GatedConvolution,
)
from minitrans.model.dropout import Dropout
from minitrans.model.embeddings import TokenEmbedding
from minitrans.model.encoder_decoder import EncoderDecoder
from minitrans.model.feedforward import ACTIVATIONS
from minitrans.model.initialise import initialise
from minitrans.model.layers import DecoderLayer, EncoderLayer, Residual
from minitrans.model.norms import NORMS
from minitrans.model.positions import POSITIONS, PositionEncoding
from minitrans.model.recurrent import RecurrentDecoder, RecurrentEncoder, RecurrentModel
from minitrans.model.transformer import Decoder, Encoder, Transformer

T = TypeVar("T")


def build_model(
    experiment: Experiment, src_vocab_size: int, tgt_vocab_size: int, *, fast: bool = True
) -> EncoderDecoder:
    """Assemble and initialise the model that a configuration describes.

    Parameters
    ----------
    experiment
        Read: ``model``, ``position``, ``attention``, ``tokenizer.joint``, ``seed``.
    src_vocab_size, tgt_vocab_size
        Entries of the vocabularies (the same where they are one).
    fast
        Use the fast twins of attention, dropout, loss and types; False turns all of
        :mod:`minitrans.model.fast` off.

    Raises
    ------
    UserError
        For a configuration that describes no model, naming the key.
    """
    builder = _Builder(experiment, fast)
    architectures = {"transformer": builder.transformer, "lstm": builder.lstm, "conv": builder.conv}
    build = _choice(architectures, experiment.model.architecture, "model.architecture")
    check_model(experiment)
    try:
        model = build(*builder.embeddings(src_vocab_size, tgt_vocab_size))
    except ValueError as error:
        raise UserError(str(error)) from error
    initialise(model, experiment.seed)
    return model


class _Builder:
    """One method for each part, outermost first."""

    def __init__(self, experiment: Experiment, fast: bool) -> None:
        self.experiment = experiment
        self.config = experiment.model
        self.fast = fast
        _require_sizes(self.config)

    def embeddings(self, src_vocab_size: int, tgt_vocab_size: int) -> tuple[TokenEmbedding, TokenEmbedding]:
        """Of the source and of the target; one where they are tied."""
        c = self.config
        tie = _check_tie(c.tie, self.experiment.tokenizer.joint, src_vocab_size, tgt_vocab_size)
        src = TokenEmbedding(src_vocab_size, c.d_model)
        return src, src if tie == "all" else TokenEmbedding(tgt_vocab_size, c.d_model)

    @property
    def tie_output(self) -> bool:
        return self.config.tie != "none"

    # --- transformer ---

    def transformer(self, src: TokenEmbedding, tgt: TokenEmbedding) -> Transformer:
        c = self.config
        encoder = Encoder(
            src,
            self.position("encoder"),
            [self.encoder_layer() for _ in range(c.num_encoder_layers)],
            self.final_norm(c.d_model),
            self.dropout(c.dropout),
            fast=self.fast,
        )
        decoder = Decoder(
            tgt,
            self.position("decoder"),
            [self.decoder_layer() for _ in range(c.num_decoder_layers)],
            self.final_norm(c.d_model),
            self.dropout(c.dropout),
            causal=c.causal,
            fast=self.fast,
        )
        return Transformer(encoder, decoder, tie_output=self.tie_output, fast=self.fast)

    def encoder_layer(self) -> EncoderLayer:
        return EncoderLayer(
            self.attention(),
            self.feed_forward(),
            self.residual(self.config.d_model),
            self.residual(self.config.d_model) if self.has_ffn else None,
        )

    def decoder_layer(self) -> DecoderLayer:
        return DecoderLayer(
            self.attention(),
            self.attention(),
            self.feed_forward(),
            self.residual(self.config.d_model),
            self.residual(self.config.d_model),
            self.residual(self.config.d_model) if self.has_ffn else None,
        )

    def attention(self) -> MultiHeadAttention:
        c = self.config
        d_k, d_v = _head_widths(c)
        return MultiHeadAttention(
            c.d_model, c.num_heads, d_k, d_v, self.core(d_k), bias=c.bias, fast=self.fast
        )

    def feed_forward(self) -> nn.Module | None:
        c = self.config
        choice = _choice({**ACTIVATIONS, "none": None}, c.ffn.activation, "model.ffn.activation")
        if choice is None:
            return None
        network, activation = choice
        dropout = self.dropout(c.ffn_dropout)
        return network(c.d_model, c.d_ff, activation, dropout, bias=c.bias, fast=self.fast)

    @property
    def has_ffn(self) -> bool:
        return self.config.ffn.activation != "none"

    # --- lstm ---

    def lstm(self, src: TokenEmbedding, tgt: TokenEmbedding) -> RecurrentModel:
        c = self.config
        encoder = RecurrentEncoder(src, self.d_hidden, c.num_encoder_layers, self.dropout(c.dropout))
        decoder = RecurrentDecoder(
            tgt, self.d_hidden, c.num_decoder_layers, self.core(self.d_hidden), self.dropout(c.dropout)
        )
        return RecurrentModel(encoder, decoder, tie_output=self.tie_output, fast=self.fast)

    # --- conv ---

    def conv(self, src: TokenEmbedding, tgt: TokenEmbedding) -> ConvolutionalModel:
        c = self.config
        encoder = ConvolutionalEncoder(
            src,
            self.position("encoder"),
            self.d_hidden,
            [self.conv_encoder_layer(number) for number in range(c.num_encoder_layers)],
            self.final_norm(self.d_hidden),
            self.dropout(c.dropout),
        )
        decoder = ConvolutionalDecoder(
            tgt,
            self.position("decoder"),
            self.d_hidden,
            [self.conv_decoder_layer(number) for number in range(c.num_decoder_layers)],
            self.final_norm(self.d_hidden),
            self.dropout(c.dropout),
        )
        return ConvolutionalModel(encoder, decoder, tie_output=self.tie_output, fast=self.fast)

    def conv_encoder_layer(self, number: int) -> ConvolutionalEncoderLayer:
        return ConvolutionalEncoderLayer(self.convolution(number), self.residual(self.d_hidden))

    def conv_decoder_layer(self, number: int) -> ConvolutionalDecoderLayer:
        return ConvolutionalDecoderLayer(
            self.convolution(number),
            self.residual(self.d_hidden),
            self.config.d_model,
            self.d_hidden,
            self.core(self.config.d_model),
            self.residual(self.d_hidden),
        )

    def convolution(self, number: int) -> GatedConvolution:
        """Of layer ``number``, from 0."""
        dilation = DILATIONS[number % len(DILATIONS)]
        return GatedConvolution(self.d_hidden, self.config.kernel_size, dilation)

    # --- parts ---

    @property
    def d_hidden(self) -> int:
        return self.config.d_hidden or self.config.d_model

    def core(self, d_k: int) -> ScaledDotProductAttention:
        """What compares queries and keys of width d_k, and sums values."""
        facts = {"d_k": d_k, "dropout": self.dropout(self.config.attention_dropout)}
        section = dict(self.experiment.attention)
        if not self.fast and section.get("backend", "auto") == "auto":
            section["backend"] = "reference"
        return construct(ATTENTION, section, facts, "attention")

    @property
    def d_k(self) -> int:
        """Width of what attention compares; where there are no heads, that is the model's."""
        c = self.config
        return _head_widths(c)[0] if c.architecture == "transformer" else c.d_model

    def position(self, side: str) -> PositionEncoding:
        """The encoding of one side: the group's own, or another kind with that kind's defaults."""
        own = {
            key: value for key, value in self.experiment.position.items() if key not in ("encoder", "decoder")
        }
        kind = self.experiment.position.get(side) or own.get("kind", "")
        facts = {"d_model": self.config.d_model, "d_k": self.d_k}
        if kind == own.get("kind", ""):
            return construct(POSITIONS, own, facts, "position")
        _choice(POSITIONS, kind, f"position.{side}")
        return construct(POSITIONS, {"kind": kind}, facts, f"position.{side}")

    def residual(self, width: int) -> Residual:
        return Residual(self.norm(width), self.dropout(self.config.dropout), pre_norm=self.pre_norm)

    def final_norm(self, width: int) -> nn.Module:
        return self.norm(width) if self.pre_norm else nn.Identity()

    def norm(self, width: int) -> nn.Module:
        return _choice(NORMS, self.config.norm, "model.norm")(width)

    def dropout(self, rate: float) -> Dropout:
        return Dropout(rate, fast=self.fast)

    @property
    def pre_norm(self) -> bool:
        return _choice({"pre": True, "post": False}, self.config.norm_order, "model.norm_order")


def _require_sizes(config: ModelConfig) -> None:
    sizes = ("num_heads", "d_model", "d_ff", "d_hidden", "d_k", "d_v", "kernel_size")
    for name in (*sizes, "num_encoder_layers", "num_decoder_layers"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise UserError(f"model.{name} must be at least 1, but it is {value}")


def _head_widths(config: ModelConfig) -> tuple[int, int]:
    """Width of one head's keys and values: d_k from d_model unless given, d_v from d_k unless given."""
    if config.d_k is None and config.d_model % config.num_heads:
        raise UserError(
            f"model.num_heads={config.num_heads} does not divide model.d_model={config.d_model}; "
            "choose a number of heads that does, or give model.d_k"
        )
    d_k = config.d_model // config.num_heads if config.d_k is None else config.d_k
    return d_k, d_k if config.d_v is None else config.d_v


def _check_tie(tie: str, joint: bool, src_vocab_size: int, tgt_vocab_size: int) -> str:
    tie = _choice({"none": "none", "decoder": "decoder", "all": "all"}, tie, "model.tie")
    if tie == "all" and not (joint and src_vocab_size == tgt_vocab_size):
        raise UserError(
            "model.tie=all makes source and target embeddings one table, which needs one vocabulary; "
            "set tokenizer.joint=true, or model.tie=decoder"
        )
    return tie


def _choice(table: Mapping[str, T], name: str, key: str) -> T:
    if name not in table:
        raise UserError(f'{key} is "{name}"{nearest(name, table)}')
    return table[name]
