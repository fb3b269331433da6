"""Collectives of two ranks played on one GPU, behind the runtime's own path protocol.

A real collective is known here by what it takes from computation: thread blocks that stay resident, memory
traffic, and a rate that a block (and the link) cannot exceed. The kernel below does just that: `num_ctas`
blocks of 512 threads move real values tile by tile, and each block waits, resident, until the clock says
that its share of the link would have carried the tile. The copy engine is played by itself: a copy from
pinned host memory, which no SM takes part in.
"""

from __future__ import annotations

from typing import Any

import torch

from kareus.runtime.ladder import Ladder
from kareus.schedule import Path

DEFAULT_CTAS = {"all_gather": 24, "reduce_scatter": 24, "all_reduce": 24}
# Bytes per ns: of one block, NCCL 2.28.9 on NVLink between two H200s (4 CTAs: 228 MB in 3.84 ms), and of the link.
BLOCK_GB_S = 15.0
LINK_GB_S = {"fast": 250.0, "slow": 45.0}
TILE_BYTES = 4 * 512 * 16
SOURCE = """
extern "C" __global__ void stand_in(
    const float4* a, const float4* b, float4* out, int count, int ns_per_tile, int add) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  unsigned long long due = 0;
  for (int tile = blockIdx.x; tile * 2048LL < count; tile += gridDim.x) {
    for (int part = 0; part < 4; ++part) {
      int i = tile * 2048 + part * 512 + threadIdx.x;
      if (i < count) {
        float4 v = a[i];
        if (add) {
          float4 w = b[i];
          v.x = 0.5f * (v.x + w.x); v.y = 0.5f * (v.y + w.y);
          v.z = 0.5f * (v.z + w.z); v.w = 0.5f * (v.w + w.w);
        }
        out[i] = v;
      }
    }
    due += ns_per_tile;
    if (threadIdx.x == 0) {
      do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - begin < due);
    }
    __syncthreads();
  }
}
"""


class StandInPath:
    """A path whose collectives hold `num_ctas` thread blocks for as long as the link would take.

    Args:
        link: a key of LINK_GB_S. ladder: tells the budget of a group; None: NCCL's default for all.
    """

    name = "nccl"

    def __init__(self, device: torch.device, link: str, ladder: Ladder | None = None) -> None:
        self.device, self.link_gb_s = device, LINK_GB_S[link]
        made = {} if ladder is None else ladder.groups
        self._ctas = {id(group): ctas for (_, _, ctas), group in made.items() if ctas}
        self._kernel: Any = None
        if device.type == "cuda":
            compile_kernel = getattr(torch.cuda, "_compile_kernel", None)
            if compile_kernel is None:
                raise RuntimeError(
                    "this torch cannot compile a CUDA kernel at run time: expected 2.9 or later"
                )
            self._kernel = compile_kernel(SOURCE, "stand_in")

    def supports(self, kind: str, num_bytes: int, group: Any) -> bool:
        return True

    def move(self, kind: str, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, num_ctas: int) -> None:
        """Write `a` (for a reduce-scatter: the mean of a and b, float32) to `out`, all [n], contiguous."""
        add = kind == "reduce_scatter"
        if self._kernel is None or (add and a.dtype != torch.float32):
            out.copy_(torch.lerp(a, b, 0.5) if add else a)
            return
        ns_per_tile = round(TILE_BYTES / min(BLOCK_GB_S, self.link_gb_s / num_ctas))
        count = out.numel() * out.element_size() // 16
        self._kernel(grid=(num_ctas, 1, 1), block=(512, 1, 1), args=[a, b, out, count, ns_per_tile, int(add)])

    def budget(self, kind: str, group: Any) -> int:
        return self._ctas.get(id(group), DEFAULT_CTAS[kind])

    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor, group: Any, async_op: bool) -> None:
        mine, other = output.view(-1).chunk(2)
        if mine.data_ptr() != tensor.data_ptr():
            mine.copy_(tensor.view(-1))
        self.move("all_gather", mine, mine, other, self.budget("all_gather", group))

    def reduce_scatter(
        self, output: torch.Tensor, tensor: torch.Tensor, group: Any, op: Any, async_op: bool
    ) -> None:
        a, b = tensor.view(-1).chunk(2)
        self.move("reduce_scatter", a, b, output.view(-1), self.budget("reduce_scatter", group))

    def all_reduce(self, tensor: torch.Tensor, group: Any, op: Any) -> torch.futures.Future[torch.Tensor]:
        devices = [self.device] if self.device.type == "cuda" else None
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        flat = tensor.view(-1)
        self.move("all_reduce", flat, flat, flat, self.budget("all_reduce", group))
        future.set_result(tensor)
        return future


class HostCopyPath(StandInPath):
    """All-gathers by a copy engine: the other rank's half comes from pinned host memory, over PCIe."""

    name = "copy_engine"
    _host: torch.Tensor | None = None

    def supports(self, kind: str, num_bytes: int, group: Any) -> bool:
        return kind == "all_gather"

    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor, group: Any, async_op: bool) -> None:
        mine, other = output.view(-1).chunk(2)
        if mine.data_ptr() != tensor.data_ptr():
            mine.copy_(tensor.view(-1))
        host = HostCopyPath._host
        if host is None or host.numel() < other.numel():
            host = torch.randn(other.numel(), dtype=torch.float32).mul_(0.02).to(other.dtype)
            host = HostCopyPath._host = host.pin_memory() if self.device.type == "cuda" else host
        other.copy_(host[: other.numel()], non_blocking=True)


def install(session: Any, device: torch.device, link: str) -> None:
    """Let a session's collectives be played; before its first step."""
    conductor = session.conductor
    conductor.paths[Path.NCCL] = StandInPath(device, link, conductor.ladder)
    conductor.paths[Path.COPY_ENGINE] = HostCopyPath(device, link)


def measure(device: torch.device, link: str, shard_mb: int = 228) -> list[dict[str, Any]]:
    """Times of the stand-in alone and beside four GEMMs, the GEMMs' own included; milliseconds.

    No thread blocks are the copy engine.
    """
    path, copies = StandInPath(device, link), HostCopyPath(device, link)
    n = shard_mb * 1_000_000 // 4
    a, b, out = (torch.randn(n, device=device) for _ in range(3))
    whole = torch.empty(4 * n, dtype=torch.bfloat16, device=device)  # as FSDP2 gathers; both halves
    left, right = (torch.randn(s, dtype=torch.bfloat16, device=device) for s in ((4096, 4096), (4096, 28672)))
    side = torch.cuda.Stream(device)
    rows: list[dict[str, Any]] = []

    def timed(ctas: int, kind: str | None, gemms: int) -> float:
        best = []
        for _ in range(7):
            torch.cuda.synchronize(device)
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            side.wait_event(start)
            with torch.cuda.stream(side):
                if kind is not None and ctas:
                    path.move(kind, a, b, out, ctas)
                elif kind is not None:
                    copies.all_gather(whole, whole[: 2 * n], None, False)
            for _ in range(gemms):
                left @ right
            torch.cuda.current_stream(device).wait_stream(side)
            end.record()
            end.synchronize()
            best.append(start.elapsed_time(end))
        return sorted(best)[len(best) // 2]

    rows.append({"kind": None, "num_ctas": 0, "gemms": 4, "ms": timed(0, None, 4)})
    for kind in ("all_gather", "reduce_scatter"):
        for ctas in (*((0,) if kind == "all_gather" else ()), 2, 4, 8, 12, 16, 20, 24):
            rows += [
                {"kind": kind, "num_ctas": ctas, "gemms": gemms, "ms": timed(ctas, kind, gemms)}
                for gemms in (0, 4)
            ]
    return rows
