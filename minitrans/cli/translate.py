"""``scripts/translate.py``: n lines in, n lines out, in order; blank lines stay blank."""

import contextlib
import copy
import io
import json
import os
import secrets
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from minitrans.cli.compose import Composed
from minitrans.cli.main import run_main
from minitrans.config import SearchConfig, TranslateConfig, parse, plain
from minitrans.errors import UserError
from minitrans.progress import progress_bar
from minitrans.signals import handled_by, interrupt

if TYPE_CHECKING:
    import torch

    from minitrans.checkpoint import Loaded
    from minitrans.decoding.translator import Translation, Translator

_BLOCK = 1 << 16  # bytes of standard input taken at once; a pipe holds as many


def main() -> int:
    """The command; returns its exit status."""
    return run_main(translate, "translate", TranslateConfig)


def translate(composed: Composed[TranslateConfig]) -> None:
    """Translate a file or standard input. Standard output gets translations and nothing else."""
    config = composed.config
    refuse_contradictions(config)
    if not composed.typed.keys().isdisjoint({"search", "search.n_best"}):
        refuse_unshown(config.search.n_best, config.format)  # else the checkpoint says
    refuse_slash(sys.argv[1:])
    refuse_existing(config.output)
    blocks: Iterable[list[str]] = (
        standard_input(_open_stream(sys.stdin, "input")) if config.input == "-" else [read_file(config.input)]
    )
    prefixes = read_file(config.prefixes) if config.prefixes else None
    if prefixes is not None:
        refuse_unequal(config, len(prefixes), sum(map(len, blocks)))
    translator = _announced(config, composed.typed)
    refuse_unshown(translator.search.n_best, config.format)
    render = RENDERERS[config.format]
    counts = Counts()
    name = "standard input" if config.input == "-" else config.input
    # SIGTERM ends it as Ctrl-C does, so that no partial file is left
    with handled_by(interrupt, (signal.SIGTERM,)), opened(config.output) as stream:
        for lines in blocks:
            with progress_bar(len(lines), shown=config.input != "-") as progress:
                found = translator.translate(
                    lines,
                    prefixes=prefixes,
                    attention=config.format != "text",
                    attention_layer=config.align_layer,
                    name=name,
                    first_line=counts.lines + 1,
                    progress=progress,
                )
            write(stream, map(render, found))
            counts.add(found)
    counts.tell()


def _announced(config: TranslateConfig, typed: Mapping[str, Any]) -> "Translator":
    """The translator, its checkpoints named on standard error."""
    loaded, translator = load_translators(config, typed)
    for one in loaded:
        print(f"checkpoint: {one.path}", file=sys.stderr)
    if config.average:
        kind = "best" if config.average_best else "last"
        print(
            f"the mean of the {config.average} {kind} checkpoints, the first of them named", file=sys.stderr
        )
    return translator


def refuse_contradictions(config: TranslateConfig) -> None:
    """Stop before any work where two settings cannot hold together."""
    for key, stream in (("input", "standard input"), ("output", "standard output")):
        if not getattr(config, key):
            raise UserError(f"{key}= is empty; give a file, or - for {stream}")
    if config.prefixes and config.input == "-":
        raise UserError("prefixes= needs input=: the beginnings belong to the lines of a file")
    if config.align_layer is not None and config.format == "text":
        raise UserError(
            f"align_layer={config.align_layer} means nothing with format=text; "
            "type format=alignment or format=json beside it"
        )


def refuse_unshown(n_best: int, format_name: str) -> None:
    """Stop where translations would be found that the format has no place for."""
    if n_best > 1 and format_name != "json":
        raise UserError(
            f"search.n_best={n_best} needs format=json: a line of format={format_name} is of one translation"
        )


def refuse_unequal(config: TranslateConfig, num_prefixes: int, num_lines: int) -> None:
    """Stop where not each line of the input has its line in the file of beginnings."""
    if num_prefixes != num_lines:
        raise UserError(
            f"prefixes={config.prefixes} has {_lines(num_prefixes)}, and {config.input} has "
            f"{_lines(num_lines)}; give each line its beginning, a blank one where it is free"
        )


def _lines(number: int) -> str:
    return f"{number:,} line{'' if number == 1 else 's'}"


@dataclass
class Counts:
    """What is said at the end of all translations."""

    lines: int = 0
    cut: int = 0
    near_ties: int = 0

    def add(self, found: "Sequence[Translation]") -> None:
        """Count a block."""
        self.lines += len(found)
        self.cut += sum(not translation.finished for translation in found)
        self.near_ties += sum(translation.near_tie for translation in found)

    def tell(self) -> None:
        """Say on standard error what a reader of the translations should know."""
        if self.cut:
            print(
                f"{self.cut:,} of {self.lines:,} translations were ended by the length limit {LIMITS}",
                file=sys.stderr,
            )
        if self.near_ties:
            print(
                f"{self.near_ties:,} of {self.lines:,} translations rest on a near-tie, which rounding can "
                "turn in batches of another size or on another machine",
                file=sys.stderr,
            )


LIMITS = "(search.max_length, search.max_length_ratio, or the model's learned positions)"


# --------------------------------------------------------------------------------------
# Text in and out
# --------------------------------------------------------------------------------------


def read_file(path: str) -> list[str]:
    """The lines of a text file, as the training data is read: UTF-8, cut at line feeds alone."""
    from minitrans.data.formats import read_lines

    return list(read_lines(Path(path)))


def standard_input(stream: io.BufferedReader | BinaryIO) -> Iterator[list[str]]:
    """Blocks of the lines that have come so far.

    A block ends where the writer pauses: at a terminal after each line, in a pipe from another program as
    soon as that waits for an answer, and for a whole file after some thousand lines.

    Raises
    ------
    UserError
        A line that is not UTF-8, named, after the lines before it; input that cannot be read.
    """
    from minitrans.data.formats import decode_lines

    arrived: deque[bytes] = deque()
    lines = decode_lines(_lines_of(stream, arrived), "standard input")
    for line in lines:
        block = [line]
        try:
            while arrived:
                block.append(next(lines))
        except UserError:
            yield block
            raise
        yield block


def _lines_of(stream: io.BufferedReader | BinaryIO, arrived: deque[bytes]) -> Iterator[bytes]:
    """Raw lines; ``arrived`` holds those that can be had without waiting."""
    rest = b""
    while chunk := _chunk_of(stream):
        *whole, rest = (rest + chunk).split(b"\n")
        arrived.extend(whole)
        while arrived:
            yield arrived.popleft() + b"\n"
    if rest:
        yield rest


def _chunk_of(stream: io.BufferedReader | BinaryIO) -> bytes:
    """What has come; empty at the end."""
    try:
        return stream.read1(_BLOCK)  # type: ignore[union-attr]
    except OSError as error:  # opened for writing alone, a terminal that has gone
        raise UserError(
            f"standard input cannot be read: {error.strerror}; name a file with input="
        ) from error


def refuse_existing(output: str) -> None:
    """Stop before any work where the output could not be written, or would overwrite a file."""
    if output == "-":
        return
    try:
        os.lstat(output)
    except FileNotFoundError:
        folder = Path(output).parent
        if not folder.is_dir():
            raise UserError(
                f"output={output} cannot be written: the folder {folder} does not exist"
            ) from None
        return
    except OSError as error:  # a name longer than file systems take, a file where a folder is needed
        raise UserError(f"output={output} cannot be written: {error.strerror}; give another name") from None
    if os.path.isdir(output):
        raise UserError(f"output={output} is a folder; name a file in it")
    if not _is_stream(output):
        raise UserError(f"output={output} is already there; remove it or give another name")


def refuse_slash(words: Sequence[str]) -> None:
    """Stop where a folder was typed, there or not: made absolute, a path has lost the slash at its end."""
    for word in words:
        if word.startswith("output=") and word.endswith("/"):
            raise UserError(f"{word} is a folder; name a file in it")


def _is_stream(output: str) -> bool:
    """Whether writing there overwrites nothing: ``/dev/null``, a terminal, a named pipe."""
    path = Path(output)
    return path.is_char_device() or path.is_fifo()


@contextlib.contextmanager
def opened(output: str) -> Iterator[BinaryIO]:
    """Where translations go. A file appears under its name once it is whole; after an error, not at all."""
    if output == "-":
        yield _open_stream(sys.stdout, "output")
        return
    path = Path(output)
    if _is_stream(output):
        try:
            with path.open("wb") as stream:
                yield stream
        except BrokenPipeError:
            raise
        except OSError as error:
            raise UserError(f"output={output} cannot be written: {error.strerror}") from error
        return
    # of a long name the beginning alone: what is added must not make it too long
    partial = path.with_name(f".{path.name[:20]}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("xb") as stream:
            yield stream
        refuse_existing(output)  # somebody may have taken the name meanwhile
        partial.replace(path)
    except OSError as error:
        raise UserError(f"output={output} cannot be written: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)


def write(stream: BinaryIO, lines: Iterable[str]) -> None:
    """Write the lines at once: a program at the other end of a pipe may be waiting."""
    stream.write("".join(f"{line}\n" for line in lines).encode())
    stream.flush()


def _open_stream(stream: TextIO | None, name: str) -> BinaryIO:
    """The bytes of a standard stream; Python has none where the caller closed it."""
    if stream is None:
        raise UserError(f"standard {name} is closed; name a file with {name}=")
    return stream.buffer


# --------------------------------------------------------------------------------------
# Formats
# --------------------------------------------------------------------------------------


def as_text(translation: "Translation") -> str:
    """The translation alone."""
    return translation.text


def as_json(translation: "Translation") -> str:
    """All that is known of it. ``score`` and the log-probabilities are natural logarithms."""
    return json.dumps(_plain(translation), ensure_ascii=False)


def _plain(translation: "Translation") -> dict[str, Any]:
    content = {
        "text": translation.text,
        "score": translation.score,
        "log_prob": translation.log_prob,
        "finished": translation.finished,
        "near_tie": translation.near_tie,
        "tokens": list(translation.tokens),
        "token_log_probs": list(translation.token_log_probs),
        "alignment": as_alignment(translation),
    }
    others = [_plain(other) for other in translation.others]
    return {**content, **({"others": others} if others else {})}


def as_alignment(translation: "Translation") -> str:
    """Pharaoh's format: ``0-0 1-2``, source word and target word, from 0; empty for a blank line."""
    from minitrans.decoding.alignment import pharaoh

    return "" if translation.attention is None else pharaoh(translation.attention.links)


RENDERERS: "Mapping[str, Callable[[Translation], str]]" = {
    "text": as_text,
    "json": as_json,
    "alignment": as_alignment,
}
"""``format=`` -> what one line of the output is."""


# --------------------------------------------------------------------------------------
# The checkpoint's settings, and what was typed
# --------------------------------------------------------------------------------------


def load_translator(config: TranslateConfig, typed: Mapping[str, Any]) -> "tuple[Loaded, Translator]":
    """The (first) checkpoint, and the translator of :func:`load_translators`."""
    loaded, translator = load_translators(config, typed)
    return loaded[0], translator


def load_translators(
    config: TranslateConfig, typed: Mapping[str, Any]
) -> "tuple[Sequence[Loaded], Translator]":
    """The checkpoints, and a translator that searches as the first one says, but for what was typed."""
    import torch

    from minitrans.allocator import keep_freed_memory
    from minitrans.loading import load_all, translator_of
    from minitrans.processors import use_threads

    use_threads(config.threads)
    given = [config.checkpoint] if isinstance(config.checkpoint, str) else config.checkpoint
    loaded = load_all(
        given,
        average=config.average,
        average_best=config.average_best,
        device=choose_device(config.accelerator),
        dtype=torch.bfloat16 if config.precision == "bf16" else torch.float32,
    )
    if any(one.model.fast for one in loaded):
        keep_freed_memory()
    section = overlaid(plain(loaded[0].experiment)["search"], plain(config)["search"], typed, "search")
    search = parse(SearchConfig, section, prefix="search.")
    return loaded, translator_of(loaded, search, config.batch_tokens)


def choose_device(accelerator: str) -> "torch.device":
    """The device that cpu, gpu or auto (a GPU where there is one) means here."""
    import torch

    if accelerator == "gpu" and not torch.cuda.is_available():
        raise UserError("accelerator=gpu, but torch finds no GPU here; use accelerator=cpu or auto")
    return torch.device("cpu" if accelerator == "cpu" or not torch.cuda.is_available() else "cuda")


def overlaid(
    base: Mapping[str, Any], composed: Mapping[str, Any], typed: Mapping[str, Any], section: str
) -> dict[str, Any]:
    """A section of the checkpoint with what the user typed over it.

    Parameters
    ----------
    base
        The checkpoint's own section.
    composed
        The section that the command line composed, its untyped keys being defaults.
    typed
        Dotted key -> value; a group's name -> its choice.
    section
        The group's name. Where a choice was typed, it brings all of its keys, so ``composed`` holds.
    """
    if section in typed:
        return dict(composed)
    result = copy.deepcopy(dict(base))
    for key, value in typed.items():
        first, *path = key.split(".")
        if first == section:
            place = result
            for part in path[:-1]:
                place = place.setdefault(part, {})
            place[path[-1]] = value
    return result
