"""Tables of the published kinds, told apart by their headers."""

from pathlib import Path

import pytest

from kareus.errors import InputError
from kareus.plan.policies.tables import num_gpus, read_kernels, read_limits, read_points

POWER = "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power\n"
KERNELS = "kernel_id,section,kernel,repeat,mem_mhz,core_mhz,time_change_pct,energy_change_pct,auto_time_ms,auto_energy_j\n"


def table(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "table.csv"
    path.write_text(text)
    return path


def test_power_tables_are_grouped_by_job(tmp_path: Path) -> None:
    path = table(tmp_path, POWER + "d,n,8,adam,250,10,200\nd,n,8,adam,200,12,150\nd,n,16,adam,250,9,210\n")
    groups = read_limits(path)
    assert list(groups) == ["d n b8 adam", "d n b16 adam"]
    first = groups["d n b8 adam"]
    assert [(c.power_limit_w, c.time_s, c.energy_j) for c in first] == [(250, 10, 2000), (200, 12, 1800)]
    assert [p.label for p in read_points(path)["d n b8 adam"]] == ["250 W", "200 W"]
    assert num_gpus(path) == {"d n b8 adam": 1, "d n b16 adam": 1}


def test_logs_sum_up_their_gpus(tmp_path: Path) -> None:
    path = table(
        tmp_path, "start_time,window_name,elapsed_time,gpu0_energy,gpu1_energy\n0,__x_175,2,100,110\n"
    )
    (cost,) = read_limits(path)[""]
    assert (cost.power_limit_w, cost.time_s, cost.energy_j) == (175, 2.0, 210.0)
    assert num_gpus(path) == {"": 2}


def test_pipelines_with_one_limit_are_read_and_others_refused(tmp_path: Path) -> None:
    head = "model_name,power_limit_0,power_limit_1,time,energy\n"
    path = table(tmp_path, head + "bert,300,300,6,7000\n")
    assert [c.power_limit_w for c in read_limits(path)["bert"]] == [300]
    assert num_gpus(path) == {"bert": 2}
    with pytest.raises(InputError, match="one power limit for all stages, found 300/225 W"):
        read_limits(table(tmp_path, head + "bert,300,225,6,7000\n"))
    apart = read_points(table(tmp_path, head + "bert,300,225,6,7000\nbert,300,0.0,9,5000\n"))["bert"]
    assert [p.label for p in apart] == ["300/225 W", "300 W"]
    with pytest.raises(InputError, match="of single ranks"):
        read_points(table(tmp_path, "rank,time_s,energy_j\n0,1,2\n"))


def test_points_have_any_of_the_known_names(tmp_path: Path) -> None:
    assert [p.time_s for p in read_points(table(tmp_path, "time,energy\n2,30\n3,20\n"))[""]] == [2.0, 3.0]
    plans = read_points(table(tmp_path, "model,iter_time_s,iter_energy_j\na,2,30\nb,3,20\n"))
    assert list(plans) == ["a", "b"]
    with pytest.raises(InputError, match="plan its pipeline first"):
        read_points(table(tmp_path, "stage,instruction,frequency,time,energy\n0,forward,1000,1,2\n"))


def test_kernels_may_have_several_clocks_and_sections_repeat(tmp_path: Path) -> None:
    rows = "0,fwd,GEMM,2,5001,auto,-2,-15,1.0,0.3\n0,fwd,GEMM,2,auto,630,5,-20,1.0,0.3\n1,fwd,LN,2,auto,auto,0,0,0.5,0.1\n"
    kernels, launches = read_kernels(
        table(tmp_path, KERNELS + rows + "2,head,Soft,1,auto,900,1,-9,2.0,0.5\n")
    )
    assert [len(k.options) for k in kernels] == [3, 1, 2]
    assert launches == [0, 1, 0, 1, 2]
    assert kernels[0].options[1].clocks == (5001, None)
    assert kernels[0].options[2].energy_j == pytest.approx(0.24)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no rows"),
        ("a,b\n1,2\n", "expected columns time and energy"),
        ("time,energy\n1,x\n", "row 1: expected a number under 'energy', found 'x'"),
        ("time,energy\n1,2\n-3,2\n", "row 2: expected a positive time"),
        ("window_name,elapsed_time,gpu0_energy\nfirst,1,2\n", "ends in _WATTS"),
        ("window_name,elapsed_time\nx_100,1\n", "expected columns gpuN_energy"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        read_points(table(tmp_path, text))


def test_other_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected power limits"):
        read_limits(table(tmp_path, "time,energy\n1,2\n"))
    with pytest.raises(InputError, match="under 'auto_time_ms'"):
        read_kernels(table(tmp_path, "time,energy\n1,2\n"))
    with pytest.raises(InputError, match="change above -100 %"):
        read_kernels(table(tmp_path, KERNELS + "0,f,G,1,auto,630,-100,-20,1.0,0.3\n"))
    with pytest.raises(InputError, match="cannot read"):
        read_points(tmp_path / "absent.csv")
