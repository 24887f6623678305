import torch

from minitrans.model.embeddings import TokenEmbedding


def test_rows_are_scaled_by_the_root_of_the_width() -> None:
    embedding = TokenEmbedding(5, 16)
    expected = torch.stack([embedding.weight[3], embedding.weight[0]]) * 4
    assert torch.equal(embedding(torch.tensor([[3, 0]]))[0], expected)


def test_embeddings_start_with_variance_one() -> None:
    x = TokenEmbedding(1000, 64)(torch.arange(1000)[None])
    assert abs(x.var().item() - 1) < 0.03
