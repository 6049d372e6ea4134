import json
import subprocess
import sys
from pathlib import Path

import pytest

from deltastore import Store
from deltastore.demo import DemoConfig, DemoFailed, run
from deltastore.demo.config import Learning, ModelSize, Reinforcement, WarmStart

SMALL = Learning(
    model=ModelSize(width=128, layers=2, heads=4),
    warm_start=WarmStart(target=0.2, rate=3e-3),
    reinforcement=Reinforcement(rate=1e-4, ramp=2, groups=32),
)


@pytest.mark.slow
def test_the_demo_learns_and_every_worker_holds_the_published_bits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(DemoConfig(root=tmp_path / "demo", steps=12, as_json=True, learning=SMALL))
    captured = capsys.readouterr()
    last = json.loads(captured.out.splitlines()[-1])
    assert last["identical"] is True
    assert last["versions"] == 13
    assert last["workers"] == 3
    assert last["reward_last"] > last["reward_first"] + 0.02
    assert last["ratio"] > 1
    assert result.compared > result.versions
    assert result.staleness_max <= SMALL.reinforcement.max_staleness
    assert "killed rollout-1" in captured.err
    assert "joins late" in captured.err
    with Store.open(result.url) as store:
        assert store.find().version == result.last_version


@pytest.mark.slow
def test_the_demo_runs_unchanged_over_s3(
    s3_root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(DemoConfig(root=tmp_path / "demo", store=s3_root, steps=8, workers=1, learning=SMALL))
    assert "identical" in capsys.readouterr().out
    assert (result.url, result.identical, result.workers) == (s3_root, True, 2)
    assert not (tmp_path / "demo" / "store").exists()
    with Store.open(s3_root) as store:
        assert store.find().version == result.last_version


@pytest.mark.slow
def test_a_process_that_fails_is_named_with_what_it_said(tmp_path: Path) -> None:
    hopeless = Learning(model=SMALL.model, warm_start=WarmStart(target=0.9, max_steps=5))
    with pytest.raises(DemoFailed, match="trainer ended with status 1") as failed:
        run(DemoConfig(root=tmp_path / "demo", steps=4, workers=1, learning=hopeless))
    assert "the warm start stopped at an expected reward of 0.00" in str(failed.value)


def test_without_torch_the_demo_says_what_to_install() -> None:
    code = "import sys; sys.modules['torch'] = None; import deltastore.demo"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "Install deltastore-rl with its extras 'torch' and 'cli'" in done.stderr
