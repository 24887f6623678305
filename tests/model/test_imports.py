import ast
import sys
from pathlib import Path

import minitrans.model

ALLOWED = {"torch", "minitrans.model"} | sys.stdlib_module_names


def imported(tree: ast.AST) -> list[str]:
    """Every module that a file imports; a relative import counts as its dots."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append("." * node.level + (node.module or ""))
    return names


def test_the_model_needs_torch_alone() -> None:
    files = sorted(Path(minitrans.model.__file__ or "").parent.rglob("*.py"))
    assert len(files) > 10
    for file in files:
        for name in imported(ast.parse(file.read_text(encoding="utf-8"))):
            parents = {".".join(name.split(".")[:n]) for n in range(1, name.count(".") + 2)}
            assert parents & ALLOWED, f"{file.name} imports {name}"


def test_the_check_sees_what_it_should() -> None:
    code = "import os.path\nfrom lightning import Trainer\nfrom . import config"
    assert imported(ast.parse(code)) == ["os.path", "lightning", "."]
