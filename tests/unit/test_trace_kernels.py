from __future__ import annotations

import json

import pytest

from kareus.errors import InputError
from kareus.trace.kernels import classify, dtype_of, load_rules
from kareus.trace.types import CollectiveKind as K
from kareus.trace.types import KernelClass as C
from kareus.trace.types import OpKind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", K.ALL_REDUCE),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", K.SEND_RECV),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", K.ALL_GATHER),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", K.REDUCE_SCATTER),
        ("ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)", K.BROADCAST),
        ("ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC", K.ALL_REDUCE),
        ("ncclSymkDevKernel_AllGather_LL", K.ALL_GATHER),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", K.OTHER),
        ("void deep_ep::internode::dispatch<false, 8>(int4*)", K.ALL_TO_ALL),
        ("void dsv3::ep::intranode::combine<__nv_bfloat16, 8>(int4*)", K.ALL_TO_ALL),
        ("multimem_all_reduce_kernel", K.ALL_REDUCE),
        ("void two_shot_all_reduce_kernel<4, 8>", K.ALL_REDUCE),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", K.ALL_REDUCE),
        ("gloo:all_reduce", K.ALL_REDUCE),
    ],
)
def test_communication_is_known_by_its_name(name: str, kind: K) -> None:
    rule = classify(name)
    assert (rule.kind, rule.kernel_class, rule.collective) == (OpKind.COLLECTIVE, C.COMMUNICATION, kind)


@pytest.mark.parametrize(
    ("name", "kernel_class"),
    [
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", C.GEMM),
        ("sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x32", C.GEMM),
        ("Cijk_Alik_Bljk_HHS_BH_MT128x128x16_SE", C.GEMM),
        ("void gemvNSP_kernel<float, float, float, float, 1, 16, 4>", C.GEMM),
        ("void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>", C.GEMM),
        ("triton_tem_fused_mm_3", C.GEMM),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128", C.ATTENTION),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64>>", C.ATTENTION),
        ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention)", C.ATTENTION),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>", C.MEMORY),
        (
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<2>>",
            C.MEMORY,
        ),
        ("void at::native::bfloat16_copy_kernel_cuda", C.MEMORY),
        ("triton_poi_fused_add_1", C.MEMORY),
        ("triton__0d1d2d3d4de", C.MEMORY),
        ("void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>", C.MEMORY),
        ("my_secret_kernel", C.OTHER),
    ],
)
def test_compute_kernels_fall_into_their_class(name: str, kernel_class: C) -> None:
    rule = classify(name)
    assert (rule.kind, rule.kernel_class, rule.collective) == (OpKind.COMPUTE, kernel_class, None)


def test_copies_and_fills_are_known_by_category() -> None:
    assert classify("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy").kind == OpKind.COPY
    assert classify("Memcpy PtoP (Device -> Device)", "gpu_memcpy").collective == K.OTHER
    assert classify("Memset (Device)", "gpu_memset").kind == OpKind.MEMSET


def test_rows_of_the_user_are_tried_first(tmp_path) -> None:
    path = tmp_path / "names.json"
    rows = [
        {"pattern": "secret", "kernel_class": "communication", "collective": "all_to_all"},
        {"pattern": "^nvjet", "kernel_class": "other"},
    ]
    path.write_text(json.dumps({"schema": "kareus.kernel-names/1", "rules": rows}))
    rules = load_rules(path)
    assert classify("my_secret_kernel", extra=rules).collective == K.ALL_TO_ALL
    assert classify("nvjet_x", extra=rules).kernel_class == C.OTHER
    assert classify("nvjet_x").kernel_class == C.GEMM


@pytest.mark.parametrize(
    ("rows", "part"),
    [
        ([{"pattern": "(", "kernel_class": "gemm"}], "regular expression"),
        ([{"pattern": "x", "kernel_class": "gem"}], "gem"),
        ([{"pattern": "x", "kernel_class": "gemm", "extra": 1}], "extra"),
    ],
)
def test_a_bad_table_is_refused(tmp_path, rows: list[dict[str, object]], part: str) -> None:
    path = tmp_path / "names.json"
    path.write_text(json.dumps({"schema": "kareus.kernel-names/1", "rules": rows}))
    with pytest.raises(InputError, match=part):
        load_rules(path)


def test_dtypes_have_their_width() -> None:
    assert dtype_of("BFloat16") == ("bf16", 2)
    assert dtype_of("c10::Float") == ("fp32", 4)
    assert dtype_of("Float8_e4m3fn") == ("fp8_e4m3", 1)
    assert dtype_of("Quaternion") == ("", 0)
