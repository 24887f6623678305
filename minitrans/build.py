"""From a configuration and the sizes of the vocabularies to a model: a table of contents of the parts."""

from collections.abc import Mapping
from typing import TypeVar

from torch import nn

from minitrans.config import Experiment, ModelConfig, check_model, construct
from minitrans.errors import UserError, nearest
from minitrans.model.attention import ATTENTION, MultiHeadAttention
from minitrans.model.dropout import Dropout
from minitrans.model.embeddings import TokenEmbedding
from minitrans.model.encoder_decoder import EncoderDecoder
from minitrans.model.feedforward import ACTIVATIONS
from minitrans.model.initialise import initialise
from minitrans.model.layers import DecoderLayer, EncoderLayer, Residual
from minitrans.model.norms import NORMS
from minitrans.model.positions import POSITIONS, PositionEncoding
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
        Use the fast twins of dropout and loss; False turns all of :mod:`minitrans.model.fast` off.

    Raises
    ------
    UserError
        For a configuration that describes no model, naming the key.
    """
    check_model(experiment)
    builder = _Builder(experiment, fast)
    architectures = {"transformer": builder.transformer}
    build = _choice(architectures, experiment.model.architecture, "model.architecture")
    try:
        model = build(src_vocab_size, tgt_vocab_size)
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
        self.d_k, self.d_v = _head_widths(self.config)

    def transformer(self, src_vocab_size: int, tgt_vocab_size: int) -> Transformer:
        c = self.config
        tie = _check_tie(c.tie, self.experiment.tokenizer.joint, src_vocab_size, tgt_vocab_size)
        src_embedding = TokenEmbedding(src_vocab_size, c.d_model)
        tgt_embedding = src_embedding if tie == "all" else TokenEmbedding(tgt_vocab_size, c.d_model)
        encoder = Encoder(
            src_embedding,
            self.position("encoder"),
            [self.encoder_layer() for _ in range(c.num_encoder_layers)],
            self.final_norm(),
            self.dropout(c.dropout),
        )
        decoder = Decoder(
            tgt_embedding,
            self.position("decoder"),
            [self.decoder_layer() for _ in range(c.num_decoder_layers)],
            self.final_norm(),
            self.dropout(c.dropout),
            causal=c.causal,
        )
        return Transformer(encoder, decoder, tie_output=tie != "none", fast=self.fast)

    def encoder_layer(self) -> EncoderLayer:
        return EncoderLayer(
            self.attention(),
            self.feed_forward(),
            self.residual(),
            self.residual() if self.has_ffn else None,
        )

    def decoder_layer(self) -> DecoderLayer:
        return DecoderLayer(
            self.attention(),
            self.attention(),
            self.feed_forward(),
            self.residual(),
            self.residual(),
            self.residual() if self.has_ffn else None,
        )

    def attention(self) -> MultiHeadAttention:
        c = self.config
        facts = {"d_k": self.d_k, "dropout": self.dropout(c.attention_dropout)}
        core = construct(ATTENTION, self.experiment.attention, facts, "attention")
        return MultiHeadAttention(c.d_model, c.num_heads, self.d_k, self.d_v, core, bias=c.bias)

    def feed_forward(self) -> nn.Module | None:
        c = self.config
        choice = _choice({**ACTIVATIONS, "none": None}, c.ffn.activation, "model.ffn.activation")
        if choice is None:
            return None
        network, activation = choice
        return network(c.d_model, c.d_ff, activation, self.dropout(c.ffn_dropout), bias=c.bias)

    @property
    def has_ffn(self) -> bool:
        return self.config.ffn.activation != "none"

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

    def residual(self) -> Residual:
        c = self.config
        return Residual(self.norm(), self.dropout(c.dropout), pre_norm=self.pre_norm)

    def final_norm(self) -> nn.Module:
        return self.norm() if self.pre_norm else nn.Identity()

    def norm(self) -> nn.Module:
        return _choice(NORMS, self.config.norm, "model.norm")(self.config.d_model)

    def dropout(self, rate: float) -> Dropout:
        return Dropout(rate, fast=self.fast)

    @property
    def pre_norm(self) -> bool:
        return _choice({"pre": True, "post": False}, self.config.norm_order, "model.norm_order")


def _head_widths(config: ModelConfig) -> tuple[int, int]:
    """Width of one head's keys and values: d_k from d_model unless given, d_v from d_k unless given."""
    sizes = ("num_heads", "d_model", "d_ff", "d_k", "d_v", "num_encoder_layers", "num_decoder_layers")
    for name in sizes:
        value = getattr(config, name)
        if value is not None and value < 1:
            raise UserError(f"model.{name} must be at least 1, but it is {value}")
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
