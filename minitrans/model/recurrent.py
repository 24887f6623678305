"""The recurrent rival: an LSTM encoder-decoder with attention (Luong et al. 2015).

A position reaches another through all those between: sequential, with paths as long as the sentence, where
the Transformer's are of length 1 (Vaswani et al. 2017, table 1).

Letters: B batch, W hypotheses of a sentence (1 outside of search), S source length, T target length,
D d_model, E d_hidden.
"""

from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrans.model.attention import ScaledDotProductAttention
from minitrans.model.cache import Cache
from minitrans.model.embeddings import TokenEmbedding
from minitrans.model.encoder_decoder import AttentionMaps, DecoderFace, EncoderDecoder, EncoderFace
from minitrans.model.fast.rows import has_onednn, type_of_products


class LSTMCell(nn.Module):
    """One step of a long short-term memory (Hochreiter and Schmidhuber 1997; forget gates, Gers et al. 2000).

    (i, f, g, o) = W [x; h] + b
    c' = σ(f) ⊙ c + σ(i) ⊙ tanh(g)
    h' = σ(o) ⊙ tanh(c')

    torch's own cell has the same rows of W in the same order. In half precision this one keeps c in float32:
    a sum over all steps so far.
    """

    def __init__(self, d_input: int, d_hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4 * d_hidden, d_input + d_hidden))
        self.bias = nn.Parameter(torch.zeros(4 * d_hidden))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Input (B, D), state h and c (B, E) -> the next h and c."""
        gates = F.linear(torch.cat((x, h), dim=-1), self.weight, self.bias)  # (B, D + E) -> (B, 4E)
        i, f, g, o = gates.chunk(4, dim=-1)  # (B, E) each
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh().to(o.dtype), c


class BidirectionalLSTM(nn.Module):
    """y_s = [→h_s; ←h_s]: two LSTMs, one from each end of the sentence (Schuster and Paliwal 1997).

    The second reads each sentence reversed within its own length, so that padding comes last for both. On a
    processor that trains 5 times faster than torch's packed sequences, which its fast kernel does not take.
    """

    def __init__(self, d_input: int, d_hidden: int) -> None:
        super().__init__()
        self.rightwards = nn.LSTM(d_input, d_hidden // 2, batch_first=True)
        self.leftwards = nn.LSTM(d_input, d_hidden // 2, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """(B, S, D) and the rows' lengths (B, 1) -> (B, S, E)."""
        right = _run(self.rightwards, x)  # (B, S, E/2)
        left = _run(self.leftwards, _reversed(x, lengths))  # (B, S, E/2)
        return torch.cat((right, _reversed(left, lengths)), dim=-1)


def _run(lstm: nn.LSTM, x: Tensor) -> Tensor:
    """The states (B, S, E/2) over (B, S, D).

    Under autocast torch hands an LSTM to oneDNN, which fails where the processor has no instructions for the
    type: there it computes in the weights' type.
    """
    if x.device.type == "cpu" and torch.is_autocast_enabled("cpu") and not has_onednn(type_of_products(x)):
        with torch.autocast("cpu", enabled=False):
            x = x.to(lstm.all_weights[0][0].dtype)
            return cast(Tensor, lstm(x)[0])
    return cast(Tensor, lstm(x)[0])


def _reversed(x: Tensor, lengths: Tensor) -> Tensor:
    """Turn the first ``lengths`` (B, 1) positions of each row of (B, S, D) around; padding stays."""
    place = torch.arange(x.size(1), device=x.device).expand(x.shape[:2])  # (B, S)
    mirrored = torch.where(place < lengths, lengths - 1 - place, place)  # (B, S)
    return x.gather(1, mirrored.unsqueeze(-1).expand_as(x))


class RecurrentEncoder(EncoderFace):
    """Embeddings, then bidirectional layers.

    Parameters
    ----------
    dropout
        Applied to the embeddings and between the layers.

    Raises
    ------
    ValueError
        If d_hidden is odd: the two directions have half of it each.
    """

    def __init__(self, embedding: TokenEmbedding, d_hidden: int, num_layers: int, dropout: nn.Module) -> None:
        super().__init__()
        if d_hidden % 2:
            raise ValueError(
                f"model.d_hidden={d_hidden} is odd, but the encoder's two directions have half of it each"
            )
        widths = [embedding.weight.size(1)] + [d_hidden] * (num_layers - 1)
        self.embedding = embedding
        self.layers = nn.ModuleList(BidirectionalLSTM(width, d_hidden) for width in widths)
        self.dropout = dropout

    def forward(self, src: Tensor, src_mask: Tensor, maps: AttentionMaps | None = None) -> Tensor:
        """(B, S) ids and (B, 1, S) bool -> memory (B, S, E)."""
        lengths = src_mask.sum(dim=-1)  # (B, 1)
        x = self.embedding(src)  # (B, S) -> (B, S, D)
        for layer in self.layers:
            x = layer(self.dropout(x), lengths)  # (B, S, E)
        return x


@dataclass(frozen=True)
class RecurrentCache:
    """What the decoder keeps: of each sentence its keys and values, of each hypothesis a state.

    Attributes
    ----------
    key, value
        (B, S, E).
    hidden, cell
        h and c of each layer, (B*W, E).
    fed
        The newest output, the next step's input: (B*W, D).
    """

    key: Tensor
    value: Tensor
    hidden: tuple[Tensor, ...]
    cell: tuple[Tensor, ...]
    fed: Tensor

    def select_sentences(self, sentences: Tensor) -> "RecurrentCache":
        """The sources of the given sentences, (B',) long."""
        key, value = (part.index_select(0, sentences) for part in (self.key, self.value))
        return replace(self, key=key, value=value)

    def select_hypotheses(self, rows: Tensor) -> "RecurrentCache":
        """The states of the given rows, (B'*W',) long."""
        return replace(
            self,
            hidden=tuple(h.index_select(0, rows) for h in self.hidden),
            cell=tuple(c.index_select(0, rows) for c in self.cell),
            fed=self.fed.index_select(0, rows),
        )


class RecurrentDecoder(DecoderFace):
    """LSTM layers, attention from the last one, and input feeding (Luong et al. 2015, sections 3.1 and 3.3).

    h_t = LSTM([y_t; o_{t-1}], h_{t-1})                       y_t the embedding of token t, o_0 = 0
    a_t = softmax over s of h_tᵀ W_a m_s,  c_t = Σ_s a_ts m_s  m_s the memory: Luong's "general" score
    o_t = tanh(W_o [c_t; h_t])                                the state that predicts token t + 1

    The output o_t enters the next step (input feeding), which so knows where the last ones looked. That makes
    training a loop over the target. One LSTM over all positions at once would take 0.4 of the loop's time,
    but input feeding is what published baselines have, and even so an update of ``tiny_lstm`` takes as long
    as one of ``tiny`` (0.32 and 0.35 processor seconds for 2,000 tokens, bf16).

    The first state is h_0 = c_0 = tanh(W_0 ←m_1), from the encoder's last step leftwards (Bahdanau et al.
    2015, appendix A.2.2).

    Parameters
    ----------
    attention
        Of width d_hidden. Luong's has no scale: ``attention=unscaled``.
    dropout
        Applied to the embeddings, between the layers, and to [c_t; h_t].
    """

    num_attentions = 1

    def __init__(
        self,
        embedding: TokenEmbedding,
        d_hidden: int,
        num_layers: int,
        attention: ScaledDotProductAttention,
        dropout: nn.Module,
    ) -> None:
        super().__init__()
        d_model = embedding.weight.size(1)
        widths = [2 * d_model] + [d_hidden] * (num_layers - 1)
        self.embedding = embedding
        self.w_start = nn.Linear(d_hidden // 2, num_layers * d_hidden)
        self.cells = nn.ModuleList(LSTMCell(width, d_hidden) for width in widths)
        self.w_key = nn.Linear(d_hidden, d_hidden, bias=False)
        self.attention = attention
        self.w_output = nn.Linear(2 * d_hidden, d_model)
        self.dropout = dropout

    def start_cache(self, memory: Tensor, src_mask: Tensor) -> Cache[RecurrentCache]:
        """(B, S, E) and (B, 1, S) -> the cache before the first token."""
        last = memory[:, 0, memory.size(-1) // 2 :]  # (B, E/2): leftwards, the first token is read last
        start = self.w_start(last).tanh()  # (B, layers * E)
        states = start.chunk(len(self.cells), dim=-1)  # (B, E) each
        fed = memory.new_zeros(len(memory), self.embedding.weight.size(1))  # (B, D)
        cells = tuple(state.to(self.w_start.weight.dtype) for state in states)
        return Cache((RecurrentCache(self.w_key(memory), memory, states, cells, fed),), src_mask)

    def forward(
        self, tgt: Tensor, cache: Cache[RecurrentCache], maps: AttentionMaps | None = None
    ) -> tuple[Tensor, Cache[RecurrentCache]]:
        """The newest tokens (B*W, T) -> their states (B*W, T, D), and the grown cache."""
        (kept,) = cache.layers
        outputs: list[Tensor] = []
        weights: list[Tensor] = []
        for y in self.dropout(self.embedding(tgt)).unbind(dim=1):  # (B*W, T, D) -> T times (B*W, D)
            kept, looked = self._step(y, kept, cache.src_mask, need_weights=maps is not None)
            outputs.append(kept.fed)
            if looked is not None:
                weights.append(looked)
        if maps is not None:
            looked = torch.stack(weights, dim=2)  # T times (B, W, S) -> (B, W, T, S)
            maps.cross.append(looked.flatten(1, 2).unsqueeze(1))  # (B, W, T, S) -> (B, 1, W*T, S)
        return torch.stack(outputs, dim=1), replace(cache, layers=(kept,), length=cache.length + tgt.size(1))

    def _step(
        self, y: Tensor, kept: RecurrentCache, src_mask: Tensor, *, need_weights: bool
    ) -> tuple[RecurrentCache, Tensor | None]:
        """One token's embedding (B*W, D) -> the next state, and the weights (B, W, S) where asked for."""
        x = torch.cat((y, kept.fed), dim=-1)  # (B*W, 2D)
        states: list[tuple[Tensor, Tensor]] = []
        for cell, h, c in zip(self.cells, kept.hidden, kept.cell, strict=True):
            h, c = cell(self.dropout(x) if states else x, h, c)  # (B*W, E)
            states.append((h, c))
            x = h
        # Hypotheses of one sentence read one source: their queries stand side by side, its keys once.
        query = x.view(len(kept.key), -1, x.size(-1))  # (B, W, E)
        context, weights = self.attention(query, kept.key, kept.value, src_mask, need_weights=need_weights)
        both = torch.cat((context.reshape(x.shape), x), dim=-1)  # (B*W, 2E)
        fed = self.w_output(self.dropout(both)).tanh()  # (B*W, 2E) -> (B*W, D)
        hidden, cells = zip(*states, strict=True)
        return replace(kept, hidden=hidden, cell=cells, fed=fed), weights


class RecurrentModel(EncoderDecoder):
    """Encoder and decoder of LSTMs, with an output matrix."""

    encoder: RecurrentEncoder
    decoder: RecurrentDecoder
