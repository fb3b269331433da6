"""A small Llama-like transformer for the examples and benchmarks, and what they share.

`llama8` is the network the published measurements were taken on: 8 blocks of hidden size 4096 with 32
heads, a gated feed-forward of 14336 and a linear head onto 32000 classes, sequence 4096, bf16 parameters.
It takes hidden states instead of tokens (no embedding), so every gathered byte belongs to a block or the
head. `tiny` has the same structure and runs on two laptop cores.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True, kw_only=True)
class Size:
    """Shape of a model and of its input; `dtype` is that of parameters and activations."""

    blocks: int
    hidden: int
    heads: int
    ffn: int
    classes: int
    sequence: int
    dtype: torch.dtype


SIZES = {
    "tiny": Size(blocks=4, hidden=64, heads=4, ffn=128, classes=256, sequence=32, dtype=torch.float32),
    "small": Size(blocks=6, hidden=256, heads=8, ffn=704, classes=1024, sequence=128, dtype=torch.float32),
    "llama8": Size(
        blocks=8, hidden=4096, heads=32, ffn=14336, classes=32000, sequence=4096, dtype=torch.bfloat16
    ),
}


class Attention(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.qkv = nn.Linear(size.hidden, 3 * size.hidden, bias=False)
        self.out = nn.Linear(size.hidden, size.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, sequence, hidden = x.shape
        qkv = self.qkv(x).view(batch, sequence, 3, self.heads, hidden // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, sequence, hidden))


class FeedForward(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.gate = nn.Linear(size.hidden, size.ffn, bias=False)
        self.up = nn.Linear(size.hidden, size.ffn, bias=False)
        self.down = nn.Linear(size.ffn, size.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(size.hidden)
        self.attention = Attention(size)
        self.mlp_norm = nn.RMSNorm(size.hidden)
        self.mlp = FeedForward(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Model(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.blocks))
        self.head = nn.Linear(size.hidden, size.classes, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def parse_arguments(description: str) -> argparse.Namespace:
    """Flags every example understands."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--size", choices=sorted(SIZES), default="tiny")
    parser.add_argument("--batch", type=int, default=1, help="sequences per rank and step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action="store_true", help="compile every block")
    parser.add_argument("--schedule", metavar="FILE", help="replay this schedule")
    parser.add_argument("--collect", metavar="DIR", help="record a few steps into this directory")
    args = parser.parse_args()
    if args.collect:
        os.environ["KAREUS_COLLECT"] = args.collect  # attach reads it, as under `kareus run --collect`
    return args


def start_process_group() -> torch.device:
    """Join the job that torchrun started: NCCL where there are GPUs, gloo elsewhere."""
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
    return device


def build(size: Size, device: torch.device, seed: int) -> Model:
    """Equal weights on every rank."""
    torch.manual_seed(seed)
    with torch.device(device):
        return Model(size).to(size.dtype)


def make_optimizer(model: nn.Module, device: torch.device) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")


class Batches:
    """Random inputs and targets, different on every rank and step, the same in every run."""

    def __init__(self, size: Size, batch: int, device: torch.device, seed: int, rank: int) -> None:
        self.size, self.batch, self.device = size, batch, device
        self.generator = torch.Generator(device).manual_seed(1_000_003 * (seed + 1) + rank)

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        size = self.size
        x = torch.randn(
            self.batch, size.sequence, size.hidden, generator=self.generator, device=self.device
        ).to(size.dtype)
        target = torch.randint(
            size.classes, (self.batch, size.sequence), generator=self.generator, device=self.device
        )
        return x, target


def loss_of(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), target.flatten())
