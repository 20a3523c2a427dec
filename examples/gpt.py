"""A small GPT: rotary positions, RMS norm, squared ReLU, and an adaptive softmax.

The softmax is what makes it fit for two processor cores: over 32,000 tokens a plain one costs
several times as much as all the layers together. The adaptive one (Grave et al. 2017, "Efficient
softmax approximation for GPUs") spends its width on the frequent tokens and is exact: its
probabilities sum to one, so losses and bits per byte compare with any other model's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as functional
from torch import Tensor, nn


@dataclass(frozen=True)
class GPTShape:
    """What decides the shapes of the weights.

    Attributes:
        vocab_size: Tokens, at least 64.
        context_length: The most tokens that a position can look back on, itself included.
        n_layers: Blocks of attention and multilayer perceptron.
        n_heads: Attention heads in each; width / n_heads must be even.
        width: Features of a token.
    """

    vocab_size: int
    context_length: int
    n_layers: int
    n_heads: int
    width: int


class Block(nn.Module):
    """Causal self-attention, then a multilayer perceptron, each added to its input."""

    def __init__(self, shape: GPTShape) -> None:
        super().__init__()
        width = shape.width
        self.n_heads = shape.n_heads
        self.attention_norm = nn.RMSNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.RMSNorm(width)
        self.mlp_in = nn.Linear(width, 4 * width, bias=False)
        self.mlp_out = nn.Linear(4 * width, width, bias=False)
        # A block starts as the identity.
        nn.init.zeros_(self.attention_out.weight)
        nn.init.zeros_(self.mlp_out.weight)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map float[batch, length, width] to the same shape; cos and sin are `GPT.rotations`."""
        batch, length, width = x.shape
        heads = self.query_key_value(self.attention_norm(x))
        heads = heads.view(batch, length, 3, self.n_heads, width // self.n_heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(
            rotate(query, cos, sin), rotate(key, cos, sin), value, is_causal=True
        )
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp_out(functional.relu(self.mlp_in(self.mlp_norm(x))).square())


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs of features by an angle that grows with position (RoPE, Su et al. 2021)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


class GPT(nn.Module):
    """Predicts each next token of a window.

    Args:
        shape: The shapes of the weights.
        frequency_ranks: int64[vocab_size], 0 for the most frequent token and so on, each rank once:
            the adaptive softmax wants its classes in that order.
    """

    def __init__(self, shape: GPTShape, frequency_ranks: Tensor) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab_size, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.n_layers))
        self.final_norm = nn.RMSNorm(shape.width)
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(
            shape.width,
            shape.vocab_size,
            cutoffs=[shape.vocab_size // 32, shape.vocab_size // 4],
            div_value=2.0,
            head_bias=True,
        )
        self.rank_of_id: Tensor
        self.id_of_rank: Tensor
        self.register_buffer("rank_of_id", frequency_ranks)
        self.register_buffer("id_of_rank", frequency_ranks.argsort())

    def features(self, ids: Tensor) -> Tensor:
        """int64[batch, length] to float[batch, length, width]."""
        x = self.embedding(self.rank_of_id[ids])
        cos, sin = self.rotations(ids.shape[1], ids.device)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.final_norm(x)

    def rotations(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Cosines and sines, each float[length, width / n_heads / 2]."""
        half = self.shape.width // self.shape.n_heads // 2
        frequencies = 10_000 ** (-torch.arange(half, device=device) / half)
        angles = torch.arange(length, device=device)[:, None] * frequencies
        return angles.cos(), angles.sin()

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean loss in nats per token, float[]; both arguments are int64[batch, length]."""
        x = self.features(inputs).view(-1, self.shape.width)
        loss: Tensor = self.softmax(x, self.rank_of_id[targets].view(-1)).loss
        return loss

    @torch.no_grad()
    def generate(
        self, ids: list[int], *, temperature: float, top_k: int, generator: torch.Generator
    ) -> Iterator[int]:
        """Yield one sampled id after the other, without end.

        Args:
            ids: What comes before, at least one id.
            temperature: Below 1 the likely tokens become likelier.
            top_k: Only that many of the likeliest tokens can be drawn.
            generator: A generator on the CPU.
        """
        ids = list(ids)
        device = self.rank_of_id.device
        while True:
            window = torch.tensor([ids[-self.shape.context_length :]], device=device)
            scores = self.softmax.log_prob(self.features(window)[:, -1])[0] / temperature
            best = scores.topk(min(top_k, self.shape.vocab_size))
            drawn = torch.multinomial(best.values.softmax(-1).cpu(), 1, generator=generator)
            ids.append(int(self.id_of_rank[best.indices[drawn.to(device)]]))
            yield ids[-1]
