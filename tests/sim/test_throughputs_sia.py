"""Sia's profile folders: rates by model and batch size."""

import numpy as np
import pytest

from levada.errors import BadInput
from levada.perf import ProfileModel
from levada.sim.throughputs import read_throughputs
from tests.peer_data import peer_data

PLACEMENTS = "local_bsz,step_time,sync_time,placement\n"
NAN = float("nan")


@pytest.fixture
def folder(tmp_path):
    model = tmp_path / "bert"
    model.mkdir()
    (model / "placements-t4.csv").write_text(
        PLACEMENTS + "8,0.5,0.1,1\n8,0.8,0.3,2\n8,1.0,0.5,11\n8,1.0,0.5,4\n8,1.5,0.5,13\n8,2.5,0.5,22\n",
        encoding="utf-8",
    )
    (model / "scalability-t4.csv").write_text(
        "num_nodes,num_replicas,local_bsz,step_time,sync_time\n2,8,8,2.0,1.0\n4,4,8,4.0,1.0\n", encoding="utf-8"
    )
    (model / "validation-8.csv").write_text("progress\n1\n", encoding="utf-8")
    return tmp_path


def test_fewest_nodes_are_alone_and_most_are_spread(folder):
    table = read_throughputs(folder)
    assert (table.workloads, table.types, table.sizes) == (("bert (batch size 8)",), ("t4",), (1, 2, 4, 8))
    assert table.alone.tolist() == [[[2.0, 2.5, 4.0, 4.0]]]
    np.testing.assert_equal(table.spread, [[[NAN, 2.0, 1.0, NAN]]])
    assert table.restart_s.tolist() == [120.0]


def test_the_folder_of_one_model_is_accepted(folder):
    assert read_throughputs(folder / "bert").workloads == ("bert (batch size 8)",)


def test_a_newer_measurement_replaces_the_older_one(folder):
    (folder / "bert" / "placements-t4-ext.csv").write_text(PLACEMENTS + "8,0.25,0.1,1\n", encoding="utf-8")
    table = read_throughputs(folder)
    assert table.types == ("t4",)
    assert table.alone.tolist() == [[[4.0]]]


def test_faults_name_file_line_and_field(folder):
    path = folder / "bert" / "placements-t4.csv"
    path.write_text(PLACEMENTS + "8,0,0,1\nx,1,0,00\n", encoding="utf-8")
    with pytest.raises(BadInput) as caught:
        read_throughputs(folder)
    assert [str(fault).replace(str(path), "F") for fault in caught.value.faults] == [
        "F:2: step_time: must be a number above 0",
        "F:3: local_bsz: must be a whole number from 1 to 1073741824",
        "F:3: placement: must have one digit per node: its GPUs",
    ]


def test_a_folder_without_profiles(tmp_path):
    with pytest.raises(BadInput, match="contains no placements-<type>"):
        read_throughputs(tmp_path)


def test_sias_published_folders():
    table = read_throughputs(peer_data("peers", "sia", "profiles"))
    assert table.types == ("aws", "azure", "dgx", "quad", "rtx")
    assert {name.partition(" ")[0] for name in table.workloads} == {
        "bert", "cifar10", "deepspeech2", "gpt_pmp", "imagenet", "ncf", "yolov3",
    }  # fmt: skip
    model = ProfileModel(table, table.workloads, table.types)
    model.bind(np.arange(len(table.workloads)), np.arange(len(table.workloads)))
    job = table.position("cifar10 (batch size 32)")
    assert model.rate(job, 0, 1) == 1 / 0.0427886962890625
    # Four GPUs on one node are faster than on four.
    assert model.rate(job, 0, 4, spread=4) < model.rate(job, 0, 4)
