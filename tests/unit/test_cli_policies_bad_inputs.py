"""`kareus policies` on files that are not what they should be: one line that names the file, and no traceback."""

import json
from pathlib import Path

import pytest

from kareus.cli.main import main

STAGES = "stage,instruction,frequency,time,energy\n" + "".join(
    f"{stage},{kind},{clock},{time},{energy}\n"
    for stage in (0, 1)
    for kind, time, energy in (("forward", 0.05, 10), ("backward", 0.1, 20))
    for clock in (1410, 1200)
)
POINTS = "time,energy\n1.0,300\n1.1,260\n1.5,240\n"
LOG = "start_time,window_name,elapsed_time,gpu0_energy\n0,w_300,10,1500\n12,w_200,10.5,1100\n"
KERNELS = (
    "kernel_id,section,kernel,repeat,mem_mhz,core_mhz,time_change_pct,energy_change_pct,auto_time_ms,auto_energy_j\n"
    "0,fwd,GEMM,24,5001,auto,-2,-15,10.0,3.4\n"
)
HOUR = "2026-01-01T00:00:00+00:00"
PIPELINE = ("pipeline", "FILE", "--micro-batches", "2", "--blocking-w", "20")
CARBON = ("carbon", "points.csv", "FILE", "--hours", "2")

# (command, text of FILE, part of the message)
FILES = {
    "a stage is missing": (PIPELINE, STAGES.replace("\n1,", "\n2,"), "found none for 1 forward, 1 backward"),
    "no backward": (PIPELINE, STAGES.replace("backward", "forward"), "found none for 0 backward, 1 backward"),
    "a clock below 0": (PIPELINE, STAGES.replace(",1200,", ",-1200,"), "row 2: expected a stage of at least 0, a po"),
    "a clock without end": (PIPELINE, STAGES.replace(",1200,", ",inf,"), "row 2: expected numbers under stage"),
    "a time of next to nothing": (PIPELINE, STAGES.replace("0.05", "1e-320"), "row 1: expected a stage of"),
    "a stage of thirty digits": (PIPELINE, STAGES.replace("\n1,", f"\n{'9' * 30},"), "expected a stage of at least"),
    "power from nothing": (("points", "FILE", "--cap-w", "900"), POINTS.replace("1.1", "1e-320"), "a positive time"),
    "a log without its energy": (("power-limit", "FILE"), LOG.replace("gpu0_energy", "x"), "gpuN_energy"),
    "a log with a hole": (("power-limit", "FILE"), LOG.replace(",1100", ","), "row 2: expected a number under 'gpu0"),
    "a window without watts": (("power-limit", "FILE"), LOG.replace("w_200", "w"), "row 2: expected a window name"),
    "a kernel run too often": (("kernels", "FILE"), KERNELS.replace(",24,", ",100000000,"), "at most 1000000 launches"),
    "a kernel run never": (("kernels", "FILE"), KERNELS.replace(",24,", ",0,"), "row 1: expected a positive"),
    "carbon below 0": (CARBON, f"timestamp,value\n{HOUR},-5\n", f"at {HOUR}, found -5.0"),
    "an unknown zone": (CARBON, '{"error": "Zone XX does not exist."}', "answered 'Zone XX does not exist.'"),
    "no entries": (CARBON, '{"history": []}', "no values"),
    "a moment as a number": (CARBON, '{"history": [{"datetime": 1, "carbonIntensity": 3}]}', "entry 0: expected"),
    "a price in an odd unit": (
        CARBON, json.dumps([{"datetime": HOUR, "value": 84.9, "unit": "EUR"}]), "unit 'EUR'",
    ),
}  # fmt: skip


def run(folder: Path, words: tuple[str, ...], text: str) -> int:
    (folder / "points.csv").write_text(POINTS)
    path = folder / "input"
    path.write_text(text)
    named = {"FILE": str(path), "points.csv": str(folder / "points.csv")}
    return main(["policies", *(named.get(word, word) for word in words)])


@pytest.mark.parametrize("name", FILES)
def test_a_bad_file_is_refused_by_name(name, tmp_path, capsys):
    words, text, expected = FILES[name]
    assert run(tmp_path, words, text) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"kareus policies: {tmp_path / 'input'}")
    assert expected in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "text"),
    [(PIPELINE, STAGES), (("power-limit", "FILE"), LOG), (("kernels", "FILE"), KERNELS),
     (("points", "FILE", "--cap-w", "900"), POINTS), (CARBON, f"timestamp,value\n{HOUR},5\n")],
)  # fmt: skip
def test_the_files_they_were_made_from_are_accepted(words, text, tmp_path, capsys):
    if words is PIPELINE:
        pytest.importorskip("ortools")
    assert run(tmp_path, words, text) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((*PIPELINE[:3], "0", *PIPELINE[4:]), "at least one stage, micro-batch and chunk, found 2, 0 and 1"),
        ((*PIPELINE, "--chunks", "-1"), "found 2, 2 and -1"),
        ((*PIPELINE[:3], "3", *PIPELINE[4:], "--chunks", "2"), "multiples of the 2 stages, found 3"),
        ((*PIPELINE[:3], "6000", *PIPELINE[4:]), "at most 20000 forwards and backwards, found 24000"),
    ],
)
def test_impossible_pipelines_are_refused(words, expected, tmp_path, capsys):
    assert run(tmp_path, words, STAGES) == 2
    assert expected in capsys.readouterr().err


def test_figures_that_only_python_takes_for_json_are_refused(tmp_path, capsys):
    document = {"schema": "kareus.batch_size/1", "sizes": [1, 2], "default": float("nan")}
    assert run(tmp_path, ("batch-size", "FILE", "--next"), json.dumps(document)) == 3
    assert "input: JSON is malformed" in capsys.readouterr().err


def prices(unit: str, *values: float | None) -> str:
    return json.dumps({
        "zone": "DE", "unit": unit,
        "data": [{"datetime": f"2026-01-01T{h:02d}:00:00.000Z", "value": v, "unit": unit} for h, v in enumerate(values)],
    })  # fmt: skip


def test_day_ahead_prices_bill_energy_and_may_be_negative(tmp_path, capsys):
    series = tmp_path / "prices.json"
    series.write_text(prices("EUR/MWh", 100.0, -50.0, None))
    words = (*CARBON, "--price", str(series), "--json")
    assert run(tmp_path, words, f"timestamp,value\n{HOUR},5\n2026-01-01T01:00:00+00:00,5\n") == 0
    found = json.loads(capsys.readouterr().out)
    # 300 W for an hour each at 0.1 and -0.05 money per kWh.
    assert found["runs"][0]["money"] == pytest.approx(0.3 * (0.1 - 0.05))
    assert found["outside_series_s"] == 0
    assert run(tmp_path, CARBON, prices("EUR/MWh", -1.0)) == 3  # nothing can be decided by it
    capsys.readouterr()


def test_a_job_longer_than_its_series_is_said_to_be(tmp_path, capsys):
    entry = json.dumps({"zone": "DE", "datetime": "2026-01-01T00:00:00.000Z", "carbonIntensity": 302})
    assert run(tmp_path, CARBON, entry) == 0
    assert "3600.000 s lie outside the series" in capsys.readouterr().out
