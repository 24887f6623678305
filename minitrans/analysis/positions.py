"""How alike the vectors of two positions are.

Letters: P positions, D d_model.
"""

from torch import Tensor

from minitrans.model.encoder_decoder import EncoderDecoder
from minitrans.model.positions import LearnedPositions
from minitrans.model.transformer import Transformer


def learned_tables(model: EncoderDecoder) -> dict[str, Tensor]:
    """Side -> its learned positions (P, D); empty where there are none."""
    if not isinstance(model, Transformer):
        return {}
    positions = {"encoder": model.encoder.position, "decoder": model.decoder.position}
    return {
        side: position.weight.detach()
        for side, position in positions.items()
        if isinstance(position, LearnedPositions)
    }


def similarity(table: Tensor) -> Tensor:
    """Cosine of the angle between the vectors of each two positions: (P, D) -> (P, P), 1 on the diagonal."""
    unit = table.double() / table.double().norm(dim=-1, keepdim=True)  # (P, D)
    return unit @ unit.T  # (P, D) @ (D, P) -> (P, P)
