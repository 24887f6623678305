"""What may be imported, where."""

import subprocess
import sys

SLOW = {"torch", "lightning", "datasets", "tokenizers", "wandb", "matplotlib", "sacrebleu"}


def test_the_command_line_is_understood_without_importing_anything_slow() -> None:
    commands = "from minitrans.cli import diagnose, evaluate, inspect_attention, main, train, translate"
    program = f"{commands}; import sys; print(*sorted({SLOW!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
