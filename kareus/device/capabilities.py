"""What the installed torch and NCCL can do, feature by feature, found out in a process of its own.

This package never imports torch: a probe of a few lines runs under the same interpreter and prints JSON.
It asks for the features themselves and not for version numbers, which forks and back-ports make useless.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

PROBE_TIMEOUT_S = 120.0  # importing torch from a cold network file system takes a minute

# Feature -> the version of PyTorch that brought it, for the reason given where it is missing.
FEATURES: dict[str, str] = {
    "fsdp2_custom_comms": "2.9",
    "fsdp2_separate_reduce_scatter_group": "2.13",
    "fsdp2_symmetric_memory": "2.12",
    "fsdp2_reset_iter_state": "2.13",
    "callback_work": "2.10",
    "nccl_config": "2.9",
    "nccl_cta_policy": "2.10",
    "symmetric_memory": "2.9",
    "green_contexts": "2.11",
    "sm_carveout": "2.9",
    "ddp_bucket_cap_mb_list": "2.11",
}

_PROBE = """
import inspect, json, sys, warnings
warnings.simplefilter("ignore")
import torch, torch.distributed as dist
def has(f):
    try:
        return bool(f())
    except Exception:
        return False
def fsdp(name):
    from torch.distributed.fsdp import FSDPModule
    return hasattr(FSDPModule, name)
def nccl_options():
    from torch.distributed import ProcessGroupNCCL
    return ProcessGroupNCCL.Options().config
def ddp_parameters():
    return inspect.signature(torch.nn.parallel.DistributedDataParallel.__init__).parameters
def symmetric_memory():
    import torch.distributed._symmetric_memory as module
    return hasattr(module, "empty") and hasattr(module, "rendezvous")
features = {
    "fsdp2_custom_comms": has(lambda: fsdp("set_custom_all_gather") and fsdp("set_custom_reduce_scatter")),
    "fsdp2_separate_reduce_scatter_group": has(lambda: fsdp("set_separate_reduce_scatter_group")),
    "fsdp2_symmetric_memory": has(lambda: fsdp("set_symm_mem_for_comm")),
    "fsdp2_reset_iter_state": has(lambda: fsdp("reset_iter_state")),
    "callback_work": has(lambda: hasattr(torch._C._distributed_c10d, "PythonCallbackWork")),
    "nccl_config": has(lambda: hasattr(nccl_options(), "max_ctas")),
    "nccl_cta_policy": has(lambda: hasattr(nccl_options(), "cta_policy")),
    "symmetric_memory": has(symmetric_memory),
    "green_contexts": has(lambda: hasattr(torch.cuda.green_contexts.GreenContext, "Stream")),
    "sm_carveout": has(lambda: hasattr(torch._C, "_set_sm_carveout_experimental")),
    "ddp_bucket_cap_mb_list": has(lambda: "bucket_cap_mb_list" in ddp_parameters()),
}
def nccl():
    return ".".join(str(part) for part in torch.cuda.nccl.version())
try:
    nccl_version = nccl() if dist.is_nccl_available() else ""
except Exception:
    nccl_version = ""
print(json.dumps({
    "torch": torch.__version__, "cuda": torch.version.cuda or "", "nccl": nccl_version, "features": features,
}))
"""


class TorchFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the probe found.

    Attributes:
        torch, cuda, nccl: versions, "" where absent.
        features: see `FEATURES`; empty where torch could not be probed.
        problem: why not, "" where it could.
    """

    torch: str = ""
    cuda: str = ""
    nccl: str = ""
    features: dict[str, bool] = {}
    problem: str = ""


def probe_torch(*, timeout_s: float = PROBE_TIMEOUT_S) -> TorchFacts:
    """Run the probe; never raises. Takes as long as importing torch."""
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _PROBE], capture_output=True, timeout=timeout_s, check=False,
            stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return TorchFacts(problem=f"importing torch took longer than {timeout_s:g} s")
    except OSError as error:
        return TorchFacts(problem=f"{sys.executable} cannot be started: {error.strerror}")
    if done.returncode != 0:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return TorchFacts(problem=lines[-1] if lines else f"the probe ended with {done.returncode}")
    try:
        return msgspec.json.decode(done.stdout.strip().splitlines()[-1], type=TorchFacts)
    except (msgspec.DecodeError, IndexError) as error:
        return TorchFacts(problem=f"the probe's answer cannot be read: {error}")
