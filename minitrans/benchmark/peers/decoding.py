"""Others' searches on the same sources, with models of the same shape.

Letters: B batch, S source length.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from minitrans.benchmark.peers import is_installed, not_measured
from minitrans.benchmark.peers.ctranslate import convert, token_of, why_not
from minitrans.benchmark.peers.training import marian_model
from minitrans.config import Experiment, SearchConfig
from minitrans.data.batching import padded
from minitrans.data.tokenizer import PAD_ID, SPECIAL_NAMES
from minitrans.model.encoder_decoder import EncoderDecoder
from minitrans.model.transformer import Transformer

Decode = Callable[[Sequence[Sequence[int]]], list[Sequence[int]]]


@dataclass(frozen=True)
class Work:
    """What a rival is given to work with."""

    experiment: Experiment
    model: EncoderDecoder  # ours, in float32
    search: SearchConfig
    length: int | None  # that every translation is forced to
    threads: int
    on_gpu: bool


@dataclass(frozen=True)
class RivalDecoder:
    """A search to measure.

    Attributes
    ----------
    name, dtype
        For the table.
    build
        The work to a function from a batch of ids to its translations.
    """

    name: str
    dtype: str
    build: Callable[[Work], Decode]


def generate_fp32(work: Work) -> Decode:
    """Hugging Face's ``generate()`` in float32."""
    return _generate(work, torch.float32)


def generate_bf16(work: Work) -> Decode:
    """Hugging Face's ``generate()`` with bf16 weights."""
    return _generate(work, torch.bfloat16)


def _generate(work: Work, dtype: torch.dtype) -> Decode:
    device = "cuda" if work.on_gpu else "cpu"
    vocab_size = work.model.decoder.embedding.weight.size(0)
    model: Any = marian_model(work.experiment.model, vocab_size).to(device, dtype).eval()

    @torch.inference_mode()
    def decode(batch: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        src = padded(batch, end=True).to(device)  # (B, S)
        found = model.generate(
            input_ids=src,
            attention_mask=(src != PAD_ID).long(),
            num_beams=work.search.beam_size,
            do_sample=False,
            min_new_tokens=work.length,
            max_new_tokens=work.length,
        )  # (B, 1 + length)
        return found[:, 1:].tolist()

    return decode


def ctranslate2_fp32(work: Work) -> Decode:
    """CTranslate2 in float32."""
    return _ctranslate2(work, "float32")


def ctranslate2_int8(work: Work) -> Decode:
    """CTranslate2 with weights of eight bits."""
    return _ctranslate2(work, "int8")


def _ctranslate2(work: Work, compute_type: str) -> Decode:
    import ctranslate2

    assert isinstance(work.model, Transformer)
    with tempfile.TemporaryDirectory(prefix="minitrans-ctranslate2-") as folder:
        convert(work.model, folder, None if compute_type == "float32" else compute_type)
        translator = ctranslate2.Translator(
            folder,
            device="cuda" if work.on_gpu else "cpu",
            compute_type=compute_type,
            inter_threads=1,
            intra_threads=work.threads,
        )

    def decode(batch: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        end = SPECIAL_NAMES[2]
        found = translator.translate_batch(
            [[*map(token_of, row), end] for row in batch],
            beam_size=work.search.beam_size,
            min_decoding_length=work.length or 1,
            max_decoding_length=work.length or work.search.max_length,
        )
        return [[_id_of(token) for token in one.hypotheses[0]] for one in found]

    return decode


def _id_of(token: str) -> int:
    return SPECIAL_NAMES.index(token) if token in SPECIAL_NAMES else int(token)


_HUGGING_FACE, _CTRANSLATE2 = "Hugging Face generate()", "CTranslate2"
_GENERATE = {"fp32": generate_fp32, "bf16": generate_bf16}
_CTRANSLATE = {"fp32": ctranslate2_fp32, "int8": ctranslate2_int8}


def rival_decoders(experiment: Experiment, length: int | None, types: Sequence[str]) -> list[RivalDecoder]:
    """Those that can be measured, each in each type that is a match for ours.

    CTranslate2's int8 is one for bf16.
    """
    left_out = dict(_left_out(experiment, length))
    wanted = {"int8" if dtype == "bf16" else dtype for dtype in types}
    found = [RivalDecoder(_HUGGING_FACE, dtype, _GENERATE[dtype]) for dtype in types]
    found += [
        RivalDecoder(_CTRANSLATE2, dtype, build) for dtype, build in _CTRANSLATE.items() if dtype in wanted
    ]
    return [rival for rival in found if rival.name not in left_out]


def absent(experiment: Experiment, length: int | None) -> list[str]:
    """A sentence for each that cannot be measured."""
    return [sentence for _, sentence in _left_out(experiment, length)]


def _left_out(experiment: Experiment, length: int | None) -> Iterator[tuple[str, str]]:
    if not is_installed("transformers"):
        yield _HUGGING_FACE, not_measured(_HUGGING_FACE, "transformers")
    elif length is None:
        yield _HUGGING_FACE, f"{_HUGGING_FACE} is not measured: its weights are random; give decode.length"
    if not is_installed("ctranslate2"):
        yield _CTRANSLATE2, not_measured(_CTRANSLATE2, "ctranslate2")
    elif reason := why_not(experiment):
        yield _CTRANSLATE2, f"{_CTRANSLATE2} is not measured: it has no model with {reason}"
