"""Jobs with feasible shares that do not fit at the same time alternate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from levada.cli import main as cli

TRACE = """\
arrival_s,workload,scale,steps,duration_s,weight
0,ResNet-18 (batch size 64),4,,50000,1
0,ResNet-18 (batch size 64),1,,300000,1
"""


@pytest.mark.parametrize("policy", ["max_min_fairness", "max_min_fairness_perf", "finish_time_fairness_perf"])
def test_a_small_job_does_not_starve_a_large_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, policy: str
) -> None:
    trace = tmp_path / "two.csv"
    trace.write_text(TRACE)
    arguments = ("--cluster", "v100=4", "--trace", str(trace), "--restart-cost", "0", "-o", "json")
    assert cli.main(("sim", "run", "--policy", policy, *arguments)) == 0
    jct = json.loads(capsys.readouterr().out)["jct_s"]
    # One after the other would be 50,000 s and 350,000 s, or 350,000 s and 300,000 s.
    assert jct["0"] < 200_000
    assert jct["1"] == pytest.approx(350_000)
