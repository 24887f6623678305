"""Which number type a training has on which processor, and what is said of it."""

import pytest

from minitrans.training import precision


@pytest.mark.parametrize(
    ("asked", "fast", "word", "said"),
    [
        ("auto", True, "bf16-mixed", "this processor multiplies bf16 in hardware"),
        ("auto", False, "32-true", "fp32 (this processor has no fast bf16)"),
        ("bf16", True, "bf16-mixed", "bf16 activations, fp32 weights"),
        ("bf16", False, "bf16-mixed", "has no fast bf16: trainer.precision=fp32 would be faster"),
        ("fp32", True, "32-true", "fp32"),
        ("fp64", False, "32-true", "fp64 weights and activations"),
    ],
)
def test_the_type_is_what_the_processor_is_fast_in_or_what_was_asked(
    monkeypatch: pytest.MonkeyPatch, asked: str, fast: bool, word: str, said: str
) -> None:
    monkeypatch.setattr(precision, "processor_is_fast_in_bf16", lambda: fast)
    chosen, told = precision.choose(asked, "cpu")
    assert chosen == word
    assert said in told
