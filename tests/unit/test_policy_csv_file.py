"""Tables as spreadsheets save them: read alike, or refused with what to change."""

from pathlib import Path

import pytest

from kareus.errors import InputError
from kareus.plan.policies.pipeline import read_stage_profile
from kareus.plan.policies.series import read_electricity_maps, read_series, read_series_csv
from kareus.plan.policies.tables import read_kernels, read_limits, read_points

BOM = "\ufeff"
STAGES = "stage,instruction,frequency,time,energy\n0,forward,1410,0.05,24.5\n0,backward,1410,0.1,46\n"
SERIES = "timestamp,value\n2026-01-31T06:00:00+00:00,420.5\n2026-01-31T07:00:00+00:00,400\n"
POINTS = "time,energy\n2.5,30\n3,20\n"
LIMITS = "power_limit,time_per_epoch,average_power\n250,10,200.5\n200,12,150\n"
KERNELS = (
    "kernel_id,kernel,repeat,mem_mhz,core_mhz,time_change_pct,energy_change_pct,auto_time_ms,auto_energy_j\n"
    "1,GEMM,2,5001,auto,-1.5,-12.5,3.5,2\n"
)
READERS = [
    (read_stage_profile, STAGES),
    (read_series_csv, SERIES),
    (read_series, SERIES),
    (read_points, POINTS),
    (read_limits, LIMITS),
]
NAMES = [reader.__name__ for reader, _ in READERS]


def file(folder: Path, text: str, encoding: str = "utf-8") -> Path:
    path = folder / "table.csv"
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize(("reader", "text"), READERS, ids=NAMES)
def test_marks_line_ends_and_blanks_of_a_spreadsheet_change_nothing(reader, text, tmp_path):
    plain = reader(file(tmp_path, text))
    assert plain == reader(file(tmp_path, BOM + text))
    assert plain == reader(file(tmp_path, BOM + text.replace("\n", "\r\n") + "\r\n"))
    assert plain == reader(file(tmp_path, text.replace(",", ", ")))


def test_kernels_are_read_behind_a_mark(tmp_path):
    assert read_kernels(file(tmp_path, BOM + KERNELS)) == read_kernels(file(tmp_path, KERNELS))


def test_electricity_maps_documents_are_read_behind_a_mark(tmp_path):
    text = '{"history": [{"datetime": "2026-01-31T06:00:00Z", "carbonIntensity": 420}]}'
    path = file(tmp_path, BOM + text)
    assert read_series(path) == read_electricity_maps(path)
    assert read_series(path).value == (420.0,)


@pytest.mark.parametrize(("reader", "text"), READERS, ids=NAMES)
@pytest.mark.parametrize(("separator", "name"), [(";", "semicolons"), ("\t", "tabs")])
def test_other_separators_are_named(reader, text, separator, name, tmp_path):
    continental = text.replace(",", separator).replace(".", ",")
    with pytest.raises(InputError, match=f"found {name} between columns, expected commas; export it as CSV"):
        reader(file(tmp_path, continental))


@pytest.mark.parametrize(("reader", "text"), READERS, ids=NAMES)
def test_decimal_commas_are_named_quoted_or_not(reader, text, tmp_path):
    before = next(word for word in text.replace("\n", ",").split(",") if "." in word)
    quoted = text.replace(before, '"' + before.replace(".", ",") + '"')
    with pytest.raises(InputError, match=r"row 1: .*decimal comma.*points in numbers"):
        reader(file(tmp_path, quoted))
    with pytest.raises(
        InputError, match=r"row 1: expected \d columns as in the header, found \d.*decimal commas"
    ):
        reader(file(tmp_path, text.replace(before, before.replace(".", ","))))


@pytest.mark.parametrize(("reader", "text"), READERS, ids=NAMES)
def test_other_spreadsheet_habits_are_refused(reader, text, tmp_path):
    with pytest.raises(InputError, match="cannot read"):
        reader(file(tmp_path, text, "utf-16"))
    with pytest.raises(InputError, match="delete this line"):
        reader(file(tmp_path, "sep=,\n" + text))
    with pytest.raises(InputError, match="no rows"):
        reader(file(tmp_path, text.split("\n")[0] + "\n"))
