"""The schedule's file: what is read, what is refused and in which words, what the digest covers."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kareus.errors import InputError
from kareus.schedule import (
    ClockRegion,
    CollectiveKey,
    Decision,
    Effect,
    Fingerprint,
    LaunchPoint,
    Proof,
    Schedule,
    UnitShape,
)
from kareus.schedule import Path as Route

GATHER = CollectiveKey(kind="all_gather", unit="blocks.1", phase="forward")
REDUCE = CollectiveKey(kind="reduce_scatter", unit="blocks.1", phase="backward", ordinal=1)
FULL = Schedule(
    fingerprint=Fingerprint(
        wrapper="fsdp2",
        world_size=2,
        units=(UnitShape(name="", numel=10, dtype="bf16"), UnitShape(name="blocks.1", numel=4, dtype="fp32")),
        collectives=(GATHER, REDUCE),
        conditions={"gpu": "NVIDIA H200"},
    ),
    decisions=(
        Decision(collective=GATHER, num_ctas=8, launch=LaunchPoint(module="blocks.0", phase="forward", side="after")),
        Decision(collective=REDUCE, path=Route.COPY_ENGINE, serialise=True),
    ),
    forward_prefetch=2,
    ddp_bucket_cap_mb_list=(1.0, 25.0),
    clocks=(ClockRegion(sm_clock_mhz=1500),),
    stock=Effect(time_us=100.0, energy_j=None, source="predicted"),
    proof=Proof(status="optimal", objective="energy", gap=0.0),
    notes=("two words",),
)  # fmt: skip


def changed(**changes: Any) -> dict[str, Any]:
    return {**json.loads(FULL.to_bytes()), **changes}


def refused(tmp_path: Path, content: object) -> str:
    path = tmp_path / "s.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(InputError) as error:
        Schedule.load(str(path))
    assert str(path) in str(error.value)
    return str(error.value)


def test_a_file_returns_the_schedule_and_names_its_schema_first(tmp_path: Path) -> None:
    FULL.save(str(tmp_path / "s.json"))
    assert Schedule.load(str(tmp_path / "s.json")) == FULL
    assert (tmp_path / "s.json").read_bytes() == FULL.to_bytes()
    assert next(iter(json.loads(FULL.to_bytes()))) == "schema"
    assert [entry.name for entry in tmp_path.iterdir()] == ["s.json"]  # no temporary file stays


def test_fields_added_since_a_file_was_written_take_their_defaults(tmp_path: Path) -> None:
    least = {"schema": "kareus.schedule/1", "fingerprint": {"wrapper": "ddp", "world_size": 2, "units": []}}
    (tmp_path / "s.json").write_text(json.dumps(least))
    assert Schedule.load(str(tmp_path / "s.json")) == Schedule(
        fingerprint=Fingerprint(wrapper="ddp", world_size=2, units=())
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schema": "kareus.schedule/2"}, ("'kareus.schedule/2'", "reads major version 1", "make it again")),
        ({"schema": "kareus.profile/1"}, ("'kareus.profile/1'", "another kind of file")),
        ({"schema": None}, ("found None", "another kind of file")),
        ({"frobnicate": 1}, ("unknown field `frobnicate`",)),
        ({"forward_prefetch": "two"}, ("Expected `int | null`, got `str`", "$.forward_prefetch")),
        ({"decisions": [{"collective": {"kind": "broadcast", "unit": "", "phase": "forward"}}]},
         ("'broadcast'", "$.decisions[0].collective.kind")),
        ({"decisions": [{"num_ctas": 4}]}, ("missing required field `collective`", "$.decisions[0]")),
        ({"fingerprint": {}}, ("missing required field", "$.fingerprint")),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named_with_its_place(
    changes: dict[str, Any], said: tuple[str, ...], tmp_path: Path
) -> None:
    message = refused(tmp_path, changed(**changes))
    for part in said:
        assert part in message


@pytest.mark.parametrize("num_ctas", [0, 33, -1])
def test_budgets_nccl_does_not_have_are_refused(num_ctas: int, tmp_path: Path) -> None:
    document = changed()
    document["decisions"][0]["num_ctas"] = num_ctas
    assert f"num_ctas must be 1..32 or null, found {num_ctas}" in refused(tmp_path, document)


def test_two_decisions_for_one_collective_are_refused(tmp_path: Path) -> None:
    document = changed()
    document["decisions"].append(document["decisions"][0])
    assert "two decisions for all_gather(blocks.1, forward)" in refused(tmp_path, document)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '"text"', "\x00\x01"])
def test_what_is_no_document_is_refused(content: str, tmp_path: Path) -> None:
    assert "kareus.schedule/1" in refused(tmp_path, content)


@given(end=st.integers(0, len(FULL.to_bytes()) - 3))
def test_a_file_cut_anywhere_is_an_input_error(end: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "cut.json"
    path.write_bytes(FULL.to_bytes()[:end])
    with pytest.raises(InputError, match="not JSON"):
        Schedule.load(str(path))


@pytest.mark.parametrize(
    "changes",
    [{"notes": []}, {"verified": True}, {"proof": None}, {"stock": None},
     {"predicted": {"time_us": 1.0, "energy_j": 1.0, "source": "predicted"}}],
)  # fmt: skip
def test_the_digest_ignores_what_changes_no_execution(changes: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps(changed(**changes)))
    assert Schedule.load(str(tmp_path / "s.json")).digest() == FULL.digest()


@pytest.mark.parametrize(
    "changes",
    [{"decisions": []}, {"forward_prefetch": 3}, {"backward_prefetch": 1}, {"reduce_scatter_deferral": 1},
     {"separate_reduce_scatter_group": True}, {"ddp_bucket_cap_mb": 8.0}, {"ddp_bucket_cap_mb_list": [25.0, 1.0]},
     {"clocks": []}, {"compute_sm_margin": 4}],
)  # fmt: skip
def test_the_digest_covers_every_knob(changes: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps(changed(**changes)))
    assert Schedule.load(str(tmp_path / "s.json")).digest() != FULL.digest()


def test_the_digest_forgets_conditions_only_of_the_fingerprint(tmp_path: Path) -> None:
    document = changed()
    document["fingerprint"]["conditions"] = {"gpu": "another"}
    (tmp_path / "s.json").write_text(json.dumps(document))
    assert Schedule.load(str(tmp_path / "s.json")).digest() == FULL.digest()
    document["fingerprint"]["world_size"] = 4
    (tmp_path / "s.json").write_text(json.dumps(document))
    assert Schedule.load(str(tmp_path / "s.json")).digest() != FULL.digest()


def test_every_difference_of_a_job_is_a_sentence() -> None:
    job = Fingerprint(
        wrapper="ddp",
        world_size=4,
        units=(UnitShape(name="", numel=11, dtype="bf16"), UnitShape(name="head", numel=1, dtype="bf16")),
    )
    assert FULL.fingerprint.differences(FULL.fingerprint) == []
    assert FULL.fingerprint.differences(job) == sorted([
        "schedule is for fsdp2, the model is wrapped with ddp",
        "schedule is for 2 ranks, the job has 4",
        "schedule names unit 'blocks.1', the model has no such unit",
        "the model has unit 'head', the schedule does not name it",
        "unit 'root': schedule has 10 bf16 elements, the model 11 bf16",
    ])  # fmt: skip


def test_a_collective_without_a_decision_is_stock() -> None:
    other = CollectiveKey(kind="all_gather", unit="blocks.9", phase="forward")
    assert FULL.decision_for(other).is_stock
    assert FULL.decision_for(GATHER) is FULL.decisions[0]
    assert not FULL.decisions[0].is_stock


def test_keys_and_points_read_as_words() -> None:
    assert str(GATHER) == "all_gather(blocks.1, forward)"
    assert str(REDUCE) == "reduce_scatter(blocks.1, backward)#1"
    assert str(LaunchPoint(module="", phase="forward", side="before")) == "before root (forward)"


def test_a_folder_that_cannot_be_written_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write"):
        FULL.save(str(tmp_path / "none" / "s.json"))
