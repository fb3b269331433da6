"""The job the two-GPU benchmarks run: a wrapped model, its batches, its steps, its state."""

from __future__ import annotations

import argparse
import contextlib
import copy
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

LINKS = {
    "default": {},
    "hostmem": {"NCCL_P2P_DISABLE": "1"},
    "socket": {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
}


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--wrapper", choices=["fsdp2", "ddp"], default="fsdp2")
    parser.add_argument("--size", default=None, help="default: llama8 on GPUs, tiny elsewhere")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action="store_true", help="compile every block")
    parser.add_argument("--bucket-mb", type=float, default=None, help="DDP bucket size")
    parser.add_argument(
        "--link", choices=sorted(LINKS), default="default", help="how NCCL may connect the GPUs"
    )
    parser.add_argument(
        "--fake", action="store_true", help="torch's fake process group of two ranks, one process"
    )
    parser.add_argument(
        "--stand-in",
        choices=["fast", "slow"],
        default=None,
        help="with --fake: play the collectives on the GPU, over a link of this kind (stand_in.py)",
    )
    parser.add_argument("--out", default=os.environ.get("OUT"), help="folder for raw JSON (default: $OUT)")


class Job:
    """A model wrapped as asked for.

    Attributes:
        model: what the loop calls. network: the module inside. optimizer: AdamW. device, rank, world_size.
        moves_data: False with the fake group, where losses mean nothing.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        os.environ.update(LINKS[args.link])
        # Multicast (NVLS) is not available on every host; switched off it is the same path everywhere.
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
        os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
        if args.link == "socket":
            os.environ["NCCL_HOSTID"] = f"rank{os.environ.get('RANK', '0')}"
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what deterministic GEMMs need
        import torch
        import torch.distributed as dist

        self.torch, self.dist, self.args = torch, dist, args
        self.moves_data = not args.fake
        self.device = self._connect()
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        from model import SIZES

        self.size_name = args.size or ("llama8" if self.device.type == "cuda" else "tiny")
        self.size = SIZES[self.size_name]
        self.model: Any = None
        self.build()

    def _connect(self) -> Any:
        torch, dist = self.torch, self.dist
        if self.args.fake:
            from torch.testing._internal.distributed.fake_pg import FakeStore

            device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
            torch.set_num_threads(1 if device.type == "cpu" else torch.get_num_threads())
            dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
        else:
            from model import start_process_group

            device = start_process_group()
        if device.type == "cuda":
            torch.cuda.set_device(device)
        return device

    def build(self) -> None:
        """Make model and optimizer anew from the seed."""
        from model import Batches, build, make_optimizer

        torch = self.torch
        args = self.args
        self.model = self.network = self.optimizer = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.network = build(self.size, self.device, args.seed)
        if args.compile:
            for block in self.network.blocks:
                block.compile()
        self.model = self._wrap()
        self.optimizer = make_optimizer(self.model, self.device)
        batches = Batches(self.size, args.batch, self.device, args.seed, self.rank)
        self.batches = [batches.next() for _ in range(4)]  # made before the clock runs
        self.steps_done = 0

    def _wrap(self) -> Any:
        torch = self.torch
        if self.args.wrapper == "ddp":
            extra = {} if self.args.bucket_mb is None else {"bucket_cap_mb": self.args.bucket_mb}
            ids = [self.device.index] if self.device.type == "cuda" else None
            return torch.nn.parallel.DistributedDataParallel(self.network, device_ids=ids, **extra)
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(param_dtype=self.size.dtype, reduce_dtype=torch.float32)
        for block in self.network.blocks:
            fully_shard(block, mp_policy=policy)
        return fully_shard(self.network, mp_policy=policy)

    def observe(self) -> None:
        """Learn which collectives a stock step issues; schedules can name only those."""
        import kareus

        session = kareus.attach(self.model, None, schedule=None)
        self.play(session)
        for _ in range(4):  # DDP settles its buckets in the first steps
            self.step()
            session.step()
        self.observed = session.observed
        session.detach()

    @property
    def played(self) -> Any:
        """The path that plays collectives outside any session; None where they are real."""
        if self.args.stand_in is None:
            return None
        from stand_in import StandInPath

        return StandInPath(self.device, self.args.stand_in)

    def play(self, session: Any) -> None:
        """Where asked for, let a session's collectives be played on this GPU."""
        if self.args.stand_in is not None:
            from stand_in import install

            install(session, self.device, self.args.stand_in)

    def twin(self) -> Job:
        """The same job with a model of its own (torch cannot take a communication hook off a DDP model)."""
        other = copy.copy(self)
        other.build()
        return other

    def step(self, *, sync: bool = True) -> Any:
        """One training step; returns the loss without waiting for it."""
        from model import loss_of

        x, target = self.batches[self.steps_done % len(self.batches)]
        self.steps_done += 1
        quiet = contextlib.nullcontext() if sync else self.model.no_sync()
        with quiet:
            loss = loss_of(self.model(x), target)
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def be_deterministic(self, on: bool) -> None:
        """Ask torch for kernels that give the same bits every time (attention's backward does not)."""
        self.torch.use_deterministic_algorithms(on, warn_only=True)
        if self.device.type == "cuda":  # cuDNN's attention has no deterministic backward to fall back to
            self.torch.backends.cuda.enable_cudnn_sdp(not on)

    def snapshot(self) -> list[Any]:
        """Copies of all parameters and optimizer state of this rank (after at least one step)."""
        return [tensor.clone() for tensor in self._state()]

    def restore(self, saved: list[Any]) -> None:
        """Put a snapshot back and begin with the first batch again."""
        with self.torch.no_grad():
            for tensor, copy in zip(self._state(), saved, strict=True):
                tensor.copy_(copy)
        self.steps_done = 0

    def _state(self) -> list[Any]:
        found = []
        for parameter in self.model.parameters():
            found.append(self._local(parameter.detach()))
            for value in self.optimizer.state.get(parameter, {}).values():
                if isinstance(value, self.torch.Tensor):
                    found.append(self._local(value))
        return found

    def _local(self, tensor: Any) -> Any:
        return tensor.to_local() if hasattr(tensor, "to_local") else tensor

    def sync(self) -> None:
        if self.device.type == "cuda":
            self.torch.cuda.synchronize(self.device)

    def barrier(self) -> None:
        if self.moves_data:
            self.dist.barrier()

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value; the own one alone with the fake group."""
        if not self.moves_data or self.world_size == 1:
            return [value]
        everyone: list[Any] = [None] * self.world_size
        self.dist.all_gather_object(everyone, value)
        return everyone

    def say(self, text: str) -> None:
        if self.rank == 0:
            print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)

    def facts(self, driver: str) -> dict[str, Any]:
        """What a reader needs to judge the numbers."""
        torch = self.torch
        cuda = self.device.type == "cuda"
        return {
            "gpu": torch.cuda.get_device_name(self.device) if cuda else "cpu",
            "backend": "fake" if self.args.fake else self.dist.get_backend(),
            "world_size": self.world_size,
            "torch": str(torch.__version__),
            "nccl": ".".join(str(v) for v in torch.cuda.nccl.version()) if cuda else "",
            "cuda": torch.version.cuda or "",
            "driver": driver,
            "python": platform.python_version(),
            "wrapper": self.args.wrapper,
            "size": self.size_name,
            "batch": self.args.batch,
            "compile": self.args.compile,
            "link": self.args.link,
            "stand_in": self.args.stand_in,
            "bucket_mb": self.args.bucket_mb,
            "command": " ".join(sys.argv),
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "clocks": "default, never touched",
        }
