"""How a command is called: it differs between a checkout and an installed copy."""

import sys
from pathlib import Path


def program(name: str) -> str:
    """What is typed for the command ``name``: an installed one's name where this process is one."""
    installed = Path(sys.argv[0]).name.startswith("minitrans-")
    return f"minitrans-{name.replace('_', '-')}" if installed else f"python scripts/{name}.py"
