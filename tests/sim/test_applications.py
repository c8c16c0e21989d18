"""Jobs that name an application and a batch size: profile and length of training."""

import json
from pathlib import Path
from typing import Any

import pytest

from levada.cli import main as cli
from levada.errors import BadInput
from levada.sim.applications import nearest, samples
from levada.sim.run import Result, simulate
from levada.sim.settings import Settings
from levada.sim.throughputs_sia import read_iterations
from tests.peer_data import peer_data

HEADER = "name,time,application,num_replicas,batch_size\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One application: on t4 with 8 and 32 samples per GPU, on a100 with 128, too; 0.5 s per step."""
    model = tmp_path / "profiles" / "toy"
    model.mkdir(parents=True)
    for gpu_type, batches in (("t4", (8, 32)), ("a100", (8, 32, 128))):
        rows = "".join(f"{batch},0.5,0,{size}\n" for batch in batches for size in (1, 2, 4))
        (model / f"placements-{gpu_type}.csv").write_text(f"local_bsz,step_time,sync_time,placement\n{rows}")
    for batch, iterations in ((32, 4000), (64, 2500)):
        epochs = f"1,{iterations / 2}\n2,{iterations}\n"
        (model / f"validation-{batch}.csv").write_text(f"progress,iteration\n{epochs}")
    return tmp_path / "profiles"


def run(folder: Path, *lines: str, cluster: str = "t4", header: str = HEADER, policy: str = "tiresias") -> Result:
    path = folder.parent / "jobs.csv"
    path.write_text(header + "\n".join(lines) + "\n")
    return simulate(Settings(policy=policy, cluster={cluster: 8}, trace=str(path), throughputs=str(folder)))


def jct(result: Result) -> list[float]:
    return [value or 0.0 for value in result.report.jct_s.values()]


def test_a_training_takes_the_iterations_of_its_batch_size(folder: Path) -> None:
    result = run(folder, "a,0,toy,4,32", "b,0,toy,2,64")
    # 4 x 8 and 2 x 32 samples per iteration of 0.5 s; a restart takes 30 s.
    assert jct(result) == pytest.approx([4000 * 0.5 + 30, 2500 * 0.5 + 30])
    assert result.notes == ()


def test_an_unmeasured_batch_size_uses_the_nearest(folder: Path) -> None:
    result = run(folder, "a,0,toy,1,128", "b,0,toy,1,32")
    # On t4 only 32 fit: four steps per iteration; the number of iterations is that of 64.
    assert jct(result)[0] == pytest.approx(2500 * 64 / 32 * 0.5 + 30)
    assert result.notes == ("1 of 2 jobs have an unmeasured batch size; using the nearest measured one",)
    larger = run(folder, "a,0,toy,1,128", cluster="a100")
    assert jct(larger) == pytest.approx([2500 * 64 / 128 * 0.5 + 30])


@pytest.mark.parametrize(
    ("header", "line"),
    [(HEADER, "a,0,toy,4,"), (HEADER.replace(",batch_size", ""), "a,0,toy,4")],
    ids=["empty", "none"],
)
def test_the_default_batch_size_is_the_smallest_measured(folder: Path, header: str, line: str) -> None:
    result = run(folder, line, header=header)
    assert jct(result) == pytest.approx([4000 * 0.5 + 30])
    assert result.notes == ("1 of 1 jobs have an unmeasured batch size; using the nearest measured one",)


def test_an_unknown_length_is_reported_with_remedies(folder: Path) -> None:
    for path in (folder / "toy").glob("validation-*.csv"):
        path.unlink()
    with pytest.raises(
        BadInput, match=r"job 0: .*duration_s to a CSV trace, or use --throughputs FOLDER with validation-"
    ):
        run(folder, "a,0,toy,4,32")
    # Explicit steps win.
    result = run(folder, "0,toy,4,32,800", header="arrival_s,workload,scale,batch_size,steps\n")
    assert jct(result) == pytest.approx([800 / (4 / 0.5) + 30])
    with pytest.raises(BadInput, match="job 0: batch_size must be a whole number above 0"):
        run(folder, "0,toy,4,many,800", header="arrival_s,workload,scale,batch_size,steps\n")


def test_faults_of_a_folder_are_reported(folder: Path) -> None:
    (folder / "toy" / "validation-64.csv").write_text("progress,iteration\n1,none\n")
    with pytest.raises(BadInput, match=r"validation-64\.csv:2: iteration: must be a number above 0"):
        run(folder, "a,0,toy,4,32")


def test_samples_are_interpolated_between_batch_sizes() -> None:
    tried = {16: 100.0, 64: 50.0}
    assert [samples(tried, batch) for batch in (8, 16, 32, 64, 999)] == pytest.approx([1600, 1600, 2400, 3200, 3200])


def test_the_nearest_batch_is_found_by_ratio() -> None:
    assert [nearest((8, 32), wanted) for wanted in (1, 15, 16, 17, 99)] == [8, 8, 8, 32, 32]


def test_lengths_of_all_published_models_are_known() -> None:
    result = read_iterations(peer_data("peers", "sia", "profiles"))
    assert sorted(result) == ["bert", "cifar10", "deepspeech2", "gpt_pmp", "imagenet", "ncf", "yolov3"]
    assert result["cifar10"][2048] == 3178


def published(capsys: pytest.CaptureFixture[str], trace: Path, policy: str, gpus: int) -> Any:
    words = ["sim", "run", "--policy", policy, "--cluster", f"aws={gpus}", "--trace", str(trace)]
    assert cli.main([*words, "--throughputs", str(peer_data("peers", "sia", "profiles")), "-o", "json"]) == 0
    out, err = capsys.readouterr()
    assert len(err.splitlines()) == 1
    assert "jobs have an unmeasured batch size" in err
    result = json.loads(out)
    assert result["finished"] == result["jobs"] == len(trace.read_text().splitlines()) - 1
    return result


@pytest.mark.parametrize("trace", ["pollux/workloads/workload-1.csv", "sia/workloads/physical-44gpu-30jobs.csv"])
def test_published_traces_run(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = published(capsys, peer_data("peers", *trace.split("/")), "fifo", 64)
    # From a minute to some days: fifo grants the minimum, one GPU.
    assert 30 < min(result["jct_s"].values()) < max(result["jct_s"].values()) < 10 * 86400


def test_jobs_take_as_long_as_in_pollux_simulator(capsys: pytest.CaptureFixture[str]) -> None:
    """Compares the fastest job of each model, which was never pending in either simulator."""
    trace = peer_data("peers", "pollux", "workloads", "workload-1.csv")
    results = json.loads(peer_data("peers", "pollux", "results", "results-jobload-tiresias-1.0.json").read_text())
    expected = results["jcts"]["workload-1"]
    ours = published(capsys, trace, "tiresias", 4096)["jct_s"].values()
    names = [line.split(",")[0] for line in trace.read_text().splitlines()[1:]]
    for model in ("ncf", "cifar10", "deepspeech2", "bert", "imagenet", "yolov3"):
        both = [(own, expected[name]) for name, own in zip(names, ours, strict=True) if name.startswith(model)]
        own, reference = map(min, zip(*both, strict=True))
        assert 0.6 < own / reference < 1.4, model
