"""What the integration tests share: running commands, looking at folders, small parallel texts."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
SCRIPTS = CHECKOUT / "scripts"

ENGLISH = (
    "a dog runs .",
    "two cats sleep .",
    "the man eats a red apple .",
    "she reads .",
    "we sing loudly today .",
    "a bird flies over the house .",
)
GERMAN = (
    "ein Hund rennt .",
    "zwei Katzen schlafen .",
    "der Mann isst einen roten Apfel .",
    "sie liest .",
    "wir singen heute laut .",
    "ein Vogel fliegt über das Haus .",
)

# A model of some 6,000 parameters, in fp32: two updates take a moment.
SMALL = (
    "model.num_encoder_layers=1",
    "model.num_decoder_layers=1",
    "model.d_model=16",
    "model.num_heads=2",
    "model.d_ff=32",
    "tokenizer.kind=word",
    "tokenizer.vocab_size=60",
    "search.max_length=12",
    "training.max_updates=2",
    "trainer=cpu",
    "trainer.progress_bar=false",
    "threads=1",
)


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    status: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The one sentence that a mistake ends in; nothing else may have been printed."""
        assert self.status == 2, self
        assert "Traceback" not in self.err
        assert self.err.startswith("error: ")
        assert self.err.endswith("\n")
        assert self.err.count("\n") == 1, self.err
        return self.err.removeprefix("error: ").removesuffix("\n")


class ForkServer:
    """Runs commands in forks of one process (see ``fork_server.py``)."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        server = Path(__file__).with_name("fork_server.py")
        self._process = subprocess.Popen(
            [sys.executable, str(server)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(CHECKOUT), **environment},
            text=True,
        )

    def run(
        self,
        name: str,
        *words: str,
        folder: Path,
        stdin: str | None = "",
        environment: Mapping[str, str] | None = None,
    ) -> Done:
        """Run ``scripts/<name>.py`` from ``folder``."""
        assert self._process.stdin is not None and self._process.stdout is not None
        job = {"script": str(SCRIPTS / f"{name}.py"), "words": words, "folder": str(folder)}
        print(
            json.dumps({**job, "stdin": stdin, "environment": dict(environment or {})}),
            file=self._process.stdin,
            flush=True,
        )
        return Done(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()


def script(name: str, *words: str, folder: Path, stdin: str = "") -> Done:
    """Run a script as its user does, imports and all: seconds each."""
    command = [sys.executable, str(SCRIPTS / f"{name}.py"), *words]
    done = subprocess.run(command, cwd=folder, input=stdin, capture_output=True, text=True, timeout=300)
    return Done(done.returncode, done.stdout, done.stderr)


def snapshot(folder: Path) -> dict[str, str]:
    """Every folder and file below ``folder``, each file with a hash of its content."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in sorted(folder.rglob("*"))
    }


def write_lines(path: Path, lines: Sequence[str]) -> Path:
    """A text file of these lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def write_pairs(folder: Path, split: str, src: Sequence[str], tgt: Sequence[str]) -> None:
    """The files ``split.en`` and ``split.de``."""
    write_lines(folder / f"{split}.en", src)
    write_lines(folder / f"{split}.de", tgt)


def data_words(folder: Path, src: str = "en", tgt: str = "de") -> tuple[str, ...]:
    """What chooses the files of ``folder`` on the command line."""
    splits = (
        f"data.{split}=['{folder}/{split}.{src}','{folder}/{split}.{tgt}']"
        for split in ("train", "valid", "test")
    )
    return ("data=pairs", f"data.src={src}", f"data.tgt={tgt}", *splits)
