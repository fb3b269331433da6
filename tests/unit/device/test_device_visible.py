import pytest

from kareus.device.visible import MigInstance, PhysicalGpu, open_gpu, read_inventory, visible_devices

SAME = tuple(PhysicalGpu(index=i, uuid=f"GPU-{i}{i}aa-{i}", name="H200") for i in range(4))
MIXED = (SAME[0], PhysicalGpu(index=1, uuid="GPU-bb", name="T4"))
SLICED = PhysicalGpu(
    index=0, uuid="GPU-cc", name="H200", mig_enabled=True,
    mig=tuple(MigInstance(uuid=f"MIG-{i}d", gpu_instance=7 + i, compute_instance=0) for i in range(2)),
)  # fmt: skip


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("2", [2]),
        ("3,1", [3, 1]),
        (" 1 , 0 ", [1, 0]),
        ("1,-1,2", [1]),
        ("1,9,2", [1]),
        ("1x,2", [1, 2]),
        ("0,0", []),
        ("NoDevFiles", []),
        ("GPU-22aa-2", [2]),
        ("GPU-33,GPU-00", [3, 0]),
        ("gpu-22", []),
        ("GPU-22AA", [2]),
        ("GPU-", []),  # all four begin so
        ("GPU-11,GPU-zz,GPU-00", [1]),
        ("GPU-11,GPU-11", []),
    ],
)
def test_cuda_visible_devices(value, expected):
    env = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    devices = visible_devices(SAME, env)
    assert expected == [device.gpu.index for device in devices]
    assert list(range(len(expected))) == [device.cuda_index for device in devices]
    assert all(device.certain for device in devices)


def test_mixed_models_are_certain_only_in_pci_order():
    assert [d.certain for d in visible_devices(MIXED, {})] == [False, False]
    assert [d.certain for d in visible_devices(MIXED, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})] == [True, True]
    assert [d.certain for d in visible_devices(MIXED, {"CUDA_VISIBLE_DEVICES": "GPU-bb"})] == [True]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("MIG-1d", [1]),
        ("MIG-GPU-cc/7/0", [0]),
        ("MIG-GPU-cc/9/0", []),
        ("MIG-0d,MIG-1d", [0, 1]),
        ("MIG-", []),
    ],
)
def test_mig_names(value, expected):
    devices = visible_devices((SLICED,), {"CUDA_VISIBLE_DEVICES": value})
    assert expected == [SLICED.mig.index(device.mig) for device in devices]


def test_an_index_on_a_divided_gpu_is_uncertain():
    (device,) = visible_devices((SLICED,), {})
    assert (device.mig, device.certain) == (SLICED.mig[0], False)


def test_inventory_and_opening(fake, nvml):
    fake.set(1, mig_instances=2, model=1)
    inventory = read_inventory(nvml)
    assert [gpu.name for gpu in inventory] == ["Fake A", "Fake B"]
    assert [len(gpu.mig) for gpu in inventory] == [0, 2]
    assert inventory[1].mig[1].gpu_instance == 8
    assert fake.uuid(1) == open_gpu(nvml, 0, env={"CUDA_VISIBLE_DEVICES": fake.uuid(1)[:10]}).uuid
    assert fake.uuid(1) == open_gpu(nvml, 0, uuid=fake.uuid(1)).uuid
    assert fake.uuid(1) == open_gpu(nvml, 0, env={"CUDA_VISIBLE_DEVICES": inventory[1].mig[0].uuid}).uuid
    assert open_gpu(nvml, 0, env={"CUDA_VISIBLE_DEVICES": inventory[1].mig[0].uuid}).mig
    assert open_gpu(nvml, 5) is None
    assert open_gpu(nvml, 0, env={"CUDA_VISIBLE_DEVICES": ""}) is None
