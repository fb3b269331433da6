"""The one table of kernel names: what a GPU work item is, decided by its name and never by its stream.

Rows are tried in order, the first match wins; the comment says where such a name comes from. A name that
no row knows is `KernelClass.OTHER`, counted and reported as a warning, because a communication kernel
counted as compute would make every figure wrong. Users add rows in a small JSON file (`load_rules`); theirs
are tried first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import msgspec

from kareus.errors import InputError
from kareus.schema import read_document
from kareus.trace.types import CollectiveKind, KernelClass, OpKind

RULES_SCHEMA = "kareus.kernel-names/1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One row: a pattern searched in the kernel's name, and what it says.

    Attributes:
        pattern: regular expression, case-insensitive; lower case in the built-in table.
        kind: OpKind. kernel_class: KernelClass.
        collective: which collective, for communication.
    """

    pattern: str
    kind: OpKind
    kernel_class: KernelClass
    collective: CollectiveKind | None = None


def _comm(pattern: str, collective: CollectiveKind) -> Rule:
    return Rule(
        pattern=pattern, kind=OpKind.COLLECTIVE, kernel_class=KernelClass.COMMUNICATION, collective=collective
    )


def _compute(pattern: str, kernel_class: KernelClass) -> Rule:
    return Rule(pattern=pattern, kind=OpKind.COMPUTE, kernel_class=kernel_class)


_NCCL = r"nccl(?:dev)?kernel|ncclsymk|nccl:|gloo:|mscclkernel|rccl"

RULES: tuple[Rule, ...] = (
    # NCCL <= 2.18 ncclKernel_AllGather_..., >= 2.19 ncclDevKernel_..., >= 2.27 ncclSymkDevKernel_...
    _comm(rf"(?:{_NCCL}).*(?:all_?gather)", CollectiveKind.ALL_GATHER),
    _comm(rf"(?:{_NCCL}).*(?:reduce_?scatter)", CollectiveKind.REDUCE_SCATTER),
    _comm(rf"(?:{_NCCL}).*(?:all_?reduce)", CollectiveKind.ALL_REDUCE),
    _comm(rf"(?:{_NCCL}).*(?:broadcast)", CollectiveKind.BROADCAST),
    _comm(rf"(?:{_NCCL}).*(?:all_?to_?all)", CollectiveKind.ALL_TO_ALL),
    _comm(rf"(?:{_NCCL}).*(?:send|recv)", CollectiveKind.SEND_RECV),
    _comm(rf"(?:{_NCCL})", CollectiveKind.OTHER),  # RCCL ncclDevKernel_Generic names nothing
    _comm(
        r"::ep::|deep_ep::|(?:internode|intranode)::(?:dispatch|combine|notify)", CollectiveKind.ALL_TO_ALL
    ),  # DeepEP
    _comm(r"multimem_all_gather|low_contention_all_gather", CollectiveKind.ALL_GATHER),  # torch symm_mem
    _comm(r"multimem_(?:one_shot_)?all_?reduce|(?:one|two)_shot_all_?reduce", CollectiveKind.ALL_REDUCE),
    _comm(r"cross_device_reduce", CollectiveKind.ALL_REDUCE),  # vLLM custom all-reduce
    _comm(r"mscclpp|mscclpp::", CollectiveKind.OTHER),
    # Matrix products: cuBLAS nvjet / cutlass / xmma, CK and Tensile on AMD, Triton matmul templates.
    _compute(r"flash|fmha|attention|sdpa|attn_(?:fwd|bwd)", KernelClass.ATTENTION),
    # Beside cuDNN's attention: helpers of its backward.
    _compute(r"compute_dot_do_o|convert_dq_to_16bits|softmax.*(?:mha|attn)", KernelClass.MEMORY),
    # Layout changes around convolutions and KV-cache writes move memory.
    _compute(r"nchwtonhwc|nhwctonchw|store_kvcache|copy_?convert", KernelClass.MEMORY),
    _compute(r"nvjet|gemm|cutlass|xmma|wgmma|matmul|cijk_|_mm_|splitk|conv(?!ert)", KernelClass.GEMM),
    _compute(r"dgrad|wgrad|gemv|dot_kernel|winograd|triton_(?:mm|tem|bmm)|fprop", KernelClass.GEMM),
    # Memory-bound PyTorch kernels.
    _compute(r"multi_tensor_apply|fusedadam|adam|sgd|lamb", KernelClass.MEMORY),  # OPTIMIZER by phase
    _compute(r"elementwise|vectorized|unrolled|reduce_|(?:layer|rms|batch)_?norm", KernelClass.MEMORY),
    _compute(r"softmax|nll_loss|cross_entropy|gammabeta|dropout|gelu|silu|relu", KernelClass.MEMORY),
    _compute(r"catarray|chunk_cat|split_with_sizes|index|gather|scatter|embedding|copy|fill|transpose|permute|"
             r"arange|cast|scan|sort|topk|random|distribution|bn_(?:fw|bw)|pool|rope|rotary|act_and_mul|quant|"
             r"optensor|tensorop|scalepacked|computeoffsets|clamp|memset", KernelClass.MEMORY),
    # torch.compile's pointwise and reduction kernels (triton_poi_, triton_red_, triton_per_; triton__0d1d in
    # torch 2.0), and whatever else is ATen's own.
    _compute(r"triton_|at::native|at_cuda_detail::cub", KernelClass.MEMORY),
)  # fmt: skip

# Searched in the name in lower case, several times faster than without regard to case.
_COMPILED = tuple((re.compile(rule.pattern), rule) for rule in RULES)
_UNKNOWN = Rule(pattern="", kind=OpKind.COMPUTE, kernel_class=KernelClass.OTHER)
_MEMCPY = Rule(pattern="", kind=OpKind.COPY, kernel_class=KernelClass.COPY)
_PEER_COPY = Rule(
    pattern="", kind=OpKind.COPY, kernel_class=KernelClass.COPY, collective=CollectiveKind.OTHER
)  # PtoP: moves data between GPUs; whether it serves a collective is decided by its annotation
_MEMSET = Rule(pattern="", kind=OpKind.MEMSET, kernel_class=KernelClass.MEMSET)

# What Kineto calls collectives in a kernel's arguments ("Collective name").
COLLECTIVE_NAMES: dict[str, CollectiveKind] = {
    "allgather": CollectiveKind.ALL_GATHER,
    "_allgather_base": CollectiveKind.ALL_GATHER,
    "allgather_into_tensor_coalesced": CollectiveKind.ALL_GATHER,
    "reduce_scatter": CollectiveKind.REDUCE_SCATTER,
    "_reduce_scatter_base": CollectiveKind.REDUCE_SCATTER,
    "reduce_scatter_tensor_coalesced": CollectiveKind.REDUCE_SCATTER,
    "allreduce": CollectiveKind.ALL_REDUCE,
    "allreduce_coalesced": CollectiveKind.ALL_REDUCE,
    "broadcast": CollectiveKind.BROADCAST,
    "all_to_all": CollectiveKind.ALL_TO_ALL,
    "all_to_allv": CollectiveKind.ALL_TO_ALL,
    "send": CollectiveKind.SEND_RECV,
    "recv": CollectiveKind.SEND_RECV,
}

# c10 dtype names in traces -> (short name, bytes an element).
DTYPES: dict[str, tuple[str, int]] = {
    "float": ("fp32", 4), "float32": ("fp32", 4), "double": ("fp64", 8), "float64": ("fp64", 8),
    "half": ("fp16", 2), "float16": ("fp16", 2), "bfloat16": ("bf16", 2), "long": ("int64", 8),
    "int64": ("int64", 8), "int": ("int32", 4), "int32": ("int32", 4), "short": ("int16", 2),
    "char": ("int8", 1), "int8": ("int8", 1), "byte": ("uint8", 1), "uint8": ("uint8", 1),
    "bool": ("bool", 1),
    "float8_e4m3fn": ("fp8_e4m3", 1), "float8_e5m2": ("fp8_e5m2", 1), "float8_e4m3fnuz": ("fp8_e4m3", 1),
    "float8_e5m2fnuz": ("fp8_e5m2", 1),
}  # fmt: skip


def dtype_of(name: str) -> tuple[str, int]:
    """Return (short name, bytes an element) of a dtype as traces write it; ("", 0) unknown."""
    return DTYPES.get(name.strip().lower().removeprefix("torch.").removeprefix("c10::"), ("", 0))


class NamedRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of a user's table.

    Attributes:
        pattern: regular expression searched in the name, case ignored.
        kernel_class: what the kernel is. collective: which one, for kernel_class "communication".
    """

    pattern: str
    kernel_class: Literal["gemm", "attention", "memory", "communication", "other"]
    collective: Literal[
        "all_gather", "reduce_scatter", "all_reduce", "broadcast", "all_to_all", "send_recv", "other"
    ] = "other"


class _RulesDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: str
    rules: tuple[NamedRule, ...]


def load_rules(path: str | os.PathLike[str]) -> tuple[Rule, ...]:
    """Read a user's rows from a kareus.kernel-names/1 file.

    Raises:
        InputError: not such a file, an unknown class, or a pattern that is no regular expression.
    """
    rules = []
    for row in read_document(path, _RulesDocument, RULES_SCHEMA).rules:
        try:
            re.compile(row.pattern)
        except re.error as error:
            raise InputError(f"{path}: {row.pattern!r} is no regular expression ({error})") from error
        if row.kernel_class == "communication":
            rules.append(_comm(row.pattern, CollectiveKind[row.collective.upper()]))
        else:
            rules.append(_compute(row.pattern, KernelClass[row.kernel_class.upper()]))
    return tuple(rules)


def classify(name: str, category: str = "kernel", extra: Sequence[Rule] = ()) -> Rule:
    """Return the row for one GPU work item.

    Args:
        name: its name. category: Kineto's lower-case category ("kernel", "gpu_memcpy", "gpu_memset").
        extra: rows of the caller, tried first.
    """
    for rule in extra:
        if re.search(rule.pattern, name, re.IGNORECASE):
            return rule
    return _classify(name, category)


@lru_cache(maxsize=65536)
def _classify(name: str, category: str) -> Rule:
    if category.endswith("memcpy"):
        return _PEER_COPY if "PtoP" in name or "P2P" in name else _MEMCPY
    if category.endswith("memset"):
        return _MEMSET
    lower = name.lower()
    for pattern, rule in _COMPILED:
        if pattern.search(lower):
            return rule
    return _UNKNOWN
