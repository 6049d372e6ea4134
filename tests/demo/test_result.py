import json
from dataclasses import replace
from pathlib import Path

import pytest

from deltastore import Store
from deltastore.demo.config import DemoConfig, Job, Learning
from deltastore.demo.events import Committed, Finished, Measured, Published, Trained, parse, say
from deltastore.demo.failure import DemoFailed
from deltastore.demo.ledger import DemoResult, Ledger
from deltastore.demo.report import rows
from deltastore.demo.run import judge, run
from deltastore.errors import DeltaStoreError, StoreExists

FIELDS = [
    *("reward_first", "reward_last", "versions", "bytes_full", "bytes_sent", "ratio", "density"),
    *("publish_ms_p50", "pause_ms_p50", "pause_ms_p95", "identical", "workers"),
]


def events() -> list[Published | Committed | Trained]:
    return [
        *(Published(v, v - 1, f"sha{v}", 1000, 20 * (v - 1), 500, 10.0 * v) for v in (1, 2, 3)),
        *(Trained(step, 0.4, 0.0, [1, 2], 1) for step in (1, 2)),
        *(Committed("rollout-0", v, f"sha{v}", 1.0 * v, 50, audit=False) for v in (1, 3)),
        *(Committed("rollout-1", v, f"sha{v}", 90.0, 70 * v, audit=True) for v in (1, 2, 3)),
    ]


def result(tmp_path: Path, told: list[Published | Committed | Trained]) -> DemoResult:
    ledger = Ledger()
    for event in told:
        ledger.add(event)
    (tmp_path / "objects").mkdir(exist_ok=True)
    (tmp_path / "objects" / "one").write_bytes(bytes(400))
    (tmp_path / "STORE.json").write_bytes(bytes(100))
    measured = Measured(0.3, 0.4, 0.005)
    return ledger.result(url=tmp_path.as_uri(), seconds=9.0, measured=measured)


def test_the_result_adds_up_what_the_processes_told(tmp_path: Path) -> None:
    found = result(tmp_path, events())
    assert (found.versions, found.last_version, found.workers) == (3, 3, 2)
    assert (found.bytes_full, found.bytes_sent, found.ratio) == (3000, 500, 6.0)
    assert found.density == pytest.approx(0.06)
    assert found.publish_ms_p50 == 20.0
    assert found.pause_ms_p50 == 2.0
    assert found.bytes_delta == 175
    assert (found.staleness_mean, found.staleness_max, found.dropped) == (1.5, 2, 2)
    assert (found.compared, found.covered, found.identical) == (5, 3, True)
    judge(found)
    assert "3 of 3 versions bit-identical on every worker that held them" in dict(rows(found)).values()


def test_the_line_of_json_has_exactly_the_promised_fields(tmp_path: Path) -> None:
    line = result(tmp_path, events()).to_json()
    assert "\n" not in line
    assert list(json.loads(line)) == FIELDS


def test_one_differing_weight_on_one_worker_fails_the_demo(tmp_path: Path) -> None:
    told = [
        replace(event, sha256="other")
        if isinstance(event, Committed) and event.version == 3 and not event.audit
        else event
        for event in events()
    ]
    found = result(tmp_path, told)
    assert found.identical is False
    assert found.differing == (("rollout-0", 3),)
    with pytest.raises(DemoFailed, match="rollout-0 at version 3"):
        judge(found)


def test_a_version_that_nobody_compared_is_not_called_identical(tmp_path: Path) -> None:
    told = [event for event in events() if not (isinstance(event, Committed) and event.version == 2)]
    found = result(tmp_path, told)
    assert found.identical is False
    with pytest.raises(DemoFailed, match="never compared"):
        judge(found)


@pytest.mark.parametrize(("last", "error"), [(0.29, 0.001), (0.31, 0.001), (0.4, 0.03)])
def test_a_reward_that_does_not_really_rise_fails_the_demo(tmp_path: Path, last: float, error: float) -> None:
    found = replace(result(tmp_path, events()), reward_first=0.3, reward_last=last, reward_error=error)
    with pytest.raises(DemoFailed, match="did not rise"):
        judge(found)
    assert issubclass(DemoFailed, DeltaStoreError)


def test_events_survive_the_way_through_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    told = [*events(), Measured(0.1, 0.2, 0.01), Finished(3)]
    for event in told:
        say(event)
    assert [parse(line) for line in capsys.readouterr().out.splitlines()] == told


def test_a_job_survives_a_command_line(tmp_path: Path) -> None:
    job = Job(
        "rollout-1",
        tmp_path / "a b",
        "s3://bucket/x y",
        5,
        999,
        60,
        audits=True,
        learning=Learning(held_out=64),
    )
    assert Job.from_json(job.to_json()) == job


def test_an_earlier_demo_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with pytest.raises(StoreExists, match="earlier demo"):
        run(DemoConfig(root=tmp_path))
    url = (tmp_path / "other").as_uri()
    Store.create(url).close()
    with pytest.raises(StoreExists, match="other"):
        run(DemoConfig(root=tmp_path / "new", store=url))
