"""Our weights as a model of CTranslate2's: the same numbers, its search.

Letters: D d_model, H heads, K d_k, V d_v.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn

from minitrans.benchmark.peers.training import LONGEST
from minitrans.config import Experiment
from minitrans.data.tokenizer import SPECIAL_NAMES
from minitrans.model.attention import MultiHeadAttention
from minitrans.model.feedforward import FeedForward
from minitrans.model.layers import DecoderLayer, EncoderLayer, Residual
from minitrans.model.positions import sinusoidal_table
from minitrans.model.transformer import Decoder, Encoder, Transformer


def why_not(experiment: Experiment) -> str:
    """The setting for which CTranslate2 has no match here, as it is typed; empty where all have one."""
    model, position = experiment.model, experiment.position
    needed = {
        "model.architecture": (model.architecture, "transformer"),
        "model.norm": (model.norm, "layer_norm"),
        "model.norm_order": (model.norm_order, "pre"),
        "model.ffn.activation": (model.ffn.activation, "relu"),
        "model.d_k": (model.d_k, None),
        "model.d_v": (model.d_v, None),
        "position": (position.get("kind"), "sinusoidal"),
        "position.encoder": (position.get("encoder") or "sinusoidal", "sinusoidal"),
        "position.decoder": (position.get("decoder") or "sinusoidal", "sinusoidal"),
        "attention.scale": (experiment.attention.get("scale"), None),
    }
    return next((f"{key}={value}" for key, (value, wanted) in needed.items() if value != wanted), "")


def token_of(id_: int) -> str:
    """The text that stands for an entry of the vocabulary."""
    return SPECIAL_NAMES[id_] if id_ < len(SPECIAL_NAMES) else str(id_)


def convert(model: Transformer, folder: str, quantization: str | None) -> None:
    """Write a model that :func:`why_not` has nothing against into ``folder``.

    Parameters
    ----------
    quantization
        ``int8``, or None for float32.
    """
    from ctranslate2.specs import TransformerSpec

    encoder, decoder = model.encoder, model.decoder
    first = cast(EncoderLayer, encoder.layers[0])
    spec = TransformerSpec.from_config(
        (len(encoder.layers), len(decoder.layers)), first.self_attention.num_heads, pre_norm=True
    )
    _stack(spec.encoder, encoder, spec.encoder.embeddings[0])
    _stack(spec.decoder, decoder, spec.decoder.embeddings)
    for layer_spec, encoder_layer in zip(spec.encoder.layer, encoder.layers, strict=True):
        _encoder_layer(layer_spec, cast(EncoderLayer, encoder_layer))
    for layer_spec, decoder_layer in zip(spec.decoder.layer, decoder.layers, strict=True):
        _decoder_layer(layer_spec, cast(DecoderLayer, decoder_layer))
    _linear(spec.decoder.projection, model.output)
    _vocabulary(spec, encoder.embedding.weight.size(0), decoder.embedding.weight.size(0))
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(folder)


def _vocabulary(spec: Any, src_size: int, tgt_size: int) -> None:
    spec.register_source_vocabulary([token_of(id_) for id_ in range(src_size)])
    spec.register_target_vocabulary([token_of(id_) for id_ in range(tgt_size)])
    _, start, end, unknown = SPECIAL_NAMES
    spec.config.bos_token = spec.config.decoder_start_token = start
    spec.config.eos_token, spec.config.unk_token = end, unknown


def _stack(spec: Any, stack: Encoder | Decoder, embedding: Any) -> None:
    embedding.weight = _numpy(stack.embedding.weight)
    spec.scale_embeddings = stack.embedding.scale
    spec.position_encodings.encodings = _numpy(sinusoidal_table(LONGEST, stack.embedding.weight.size(1)))
    _norm(spec.layer_norm, stack.final_norm)


def _encoder_layer(spec: Any, layer: EncoderLayer) -> None:
    _self_attention(spec.self_attention, layer.self_attention, layer.self_residual.norm)
    _feed_forward(spec.ffn, layer.feed_forward, layer.ffn_residual)


def _decoder_layer(spec: Any, layer: DecoderLayer) -> None:
    _self_attention(spec.self_attention, layer.self_attention, layer.self_residual.norm)
    cross = layer.cross_attention
    _linear(spec.attention.linear[0], cross.w_query)
    _linear(spec.attention.linear[1], cross.w_key, cross.w_value)
    _linear(spec.attention.linear[2], cross.w_output)
    _norm(spec.attention.layer_norm, layer.cross_residual.norm)
    _feed_forward(spec.ffn, layer.feed_forward, layer.ffn_residual)


def _self_attention(spec: Any, attention: MultiHeadAttention, norm: nn.Module) -> None:
    _linear(spec.linear[0], attention.w_query, attention.w_key, attention.w_value)
    _linear(spec.linear[1], attention.w_output)
    _norm(spec.layer_norm, norm)


def _feed_forward(spec: Any, network: nn.Module | None, residual: Residual | None) -> None:
    assert isinstance(network, FeedForward) and residual is not None
    _linear(spec.linear_0, network.w_1)
    _linear(spec.linear_1, network.w_2)
    _norm(spec.layer_norm, residual.norm)


def _linear(spec: Any, *maps: nn.Linear) -> None:
    """One map, or several of one input side by side."""
    spec.weight = _numpy(torch.cat([one.weight.detach() for one in maps]))
    biases = [one.bias.detach() for one in maps if one.bias is not None]
    if biases:
        spec.bias = _numpy(torch.cat(biases))


def _norm(spec: Any, norm: nn.Module) -> None:
    spec.gamma, spec.beta = _numpy(cast(Tensor, norm.weight)), _numpy(cast(Tensor, norm.bias))


def _numpy(tensor: Tensor) -> Any:
    return tensor.detach().float().numpy()
