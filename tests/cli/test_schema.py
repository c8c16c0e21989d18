"""`levada schema` prints JSON Schemas that accept what the models accept."""

import json
from typing import Any

import jsonschema
import pytest
import yaml

from levada.cli.main import main
from levada.jobfile.load import load
from tests.cli.test_casefile import CASE
from tests.jobfile.test_load import JOB


def schema_of(kind: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["schema", kind]) == 0
    schema: dict[str, Any] = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(schema)
    return schema


def accepts(schema: dict[str, Any], value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


def test_job(capsys: pytest.CaptureFixture[str]) -> None:
    schema = schema_of("job", capsys)
    job = yaml.safe_load(JOB)
    assert load(JOB)
    assert accepts(schema, job)
    assert accepts(schema, {**job, "spec": {**job["spec"], "workers": 4, "deadline": "2026-11-15T18:00:00Z"}})
    assert not accepts(schema, {**job, "kind": "Queue"})
    assert not accepts(schema, {**job, "spec": {**job["spec"], "wrkers": 4}})
    assert not accepts(schema, {**job, "spec": {**job["spec"], "resources": {"memory": "8Gx"}}})


def test_queue(capsys: pytest.CaptureFixture[str]) -> None:
    schema = schema_of("queue", capsys)
    queue = {"apiVersion": "levada.dev/v1", "kind": "Queue", "metadata": {"name": "vision"}}
    assert accepts(schema, {**queue, "spec": {"guaranteed": {"a100": 8}, "perUserLimit": {"a100": 4}}})
    assert not accepts(schema, {**queue, "spec": {"guaranteed": {"a100": -8}}})


def test_case(capsys: pytest.CaptureFixture[str]) -> None:
    schema = schema_of("case", capsys)
    assert accepts(schema, CASE)
    assert not accepts(schema, {**CASE, "jobs": [{"id": "A", "min": 0}]})
    assert not accepts(schema, {**CASE, "jobs": [{"id": "A", "mim": 1}]})


def test_dragon_case(capsys: pytest.CaptureFixture[str]) -> None:
    schema = schema_of("case", capsys)
    node = {"name": "n1", "cpu": 16000, "mem": 65536, "gpus": 4}
    job = {"name": "j1", "min": 1, "max": 2, "worker": {"replicas": 2, "gpu": 1}}
    made = {"policy": "dragon", "now": 100.0, "nodes": [node], "pending": [job], "note": "anything"}
    assert accepts(schema, made)
    assert not accepts(schema, {**made, "nodes": [{**node, "gpoos": 4}]})
    assert not accepts(schema, {**made, "now": "later"})


@pytest.mark.parametrize("kind", ["job", "queue", "case"])
def test_every_field_is_described(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    schema = schema_of(kind, capsys)
    models = [schema, *schema["$defs"].values()]
    bare = [name for model in models for name, field in model.get("properties", {}).items() if len(field.get("description", "")) < 12]  # fmt: skip
    assert bare == []
