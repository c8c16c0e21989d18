"""Documents are prepared for the server."""

from typing import Any

import pytest

from levada.jobfile.load import check
from levada.sdk.prepare import folder_of, sendable, with_folder
from tests.jobfile.manifests import MPI


def job(**run: Any) -> dict[str, Any]:
    return {"kind": "Job", "spec": {"run": {"command": ["x"], **run}}}


def test_directories_are_absolute() -> None:
    assert folder_of(with_folder(job(workdir="data"), "/folder")) == "/folder/data"
    assert folder_of(with_folder(job(workdir="/data"), "/folder")) == "/data"
    assert folder_of(with_folder(job(), "/folder")) == "/folder"
    run = check(with_folder(MPI, "/folder")).content.spec.run  # type: ignore[union-attr]
    assert run is not None
    assert run.workdir == "/folder"


@pytest.mark.parametrize(
    "invalid", [{}, {"kind": "Job"}, {"kind": "Job", "spec": {"run": 3}}, job(workdir=3), job(env=3)]
)
def test_invalid_documents_are_left_to_the_server(invalid: dict[str, Any]) -> None:
    sent: Any = sendable(invalid).get("spec", {}).get("run")
    was: Any = invalid.get("spec", {}).get("run")
    assert sent == was or sent["workdir"] == was.get("workdir") or sent["env"] == was.get("env")


def test_paths_are_those_of_the_user_unless_the_job_sets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/mine")
    monkeypatch.setenv("VIRTUAL_ENV", "/venv")
    assert sendable(job(env={"LR": "1"}))["spec"]["run"]["env"].items() >= {"PATH": "/mine", "LR": "1"}.items()
    assert sendable(job(env={"PATH": "/its"}))["spec"]["run"]["env"]["PATH"] == "/its"
    for manifest in (MPI, {**MPI, "metadata": {"name": "mnist", "annotations": {"a": "b"}}}):
        run = check(sendable(manifest)).content.spec.run  # type: ignore[union-attr]
        assert run is not None
        assert (run.env["PATH"], run.env["VIRTUAL_ENV"], run.env["NP"]) == ("/mine", "/venv", "2")
    on_kubernetes = {"kind": "Job", "spec": {"run": {"command": ["x"]}, "kubernetes": {"image": "i"}}}
    assert "env" not in sendable(on_kubernetes)["spec"]["run"]
