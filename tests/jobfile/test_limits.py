"""Texts beyond the limits are rejected before parsing; at most 100 faults."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levada.errors import BadInput
from levada.jobfile.limits import JOB_FILE, FileLimits, measure_json
from levada.jobfile.load import load
from levada.jobfile.text import parse_any, parse_documents, parse_json

TEXT = st.text(alphabet='a"\\[]{},:\n', max_size=6)
VALUES = st.recursive(
    st.none() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=30,
)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


def most_keys(value: Any) -> int:
    if isinstance(value, dict):
        return max(len(value), *map(most_keys, value.values()), 0)
    return max(map(most_keys, value), default=0) if isinstance(value, list) else 0


def longest_key(value: Any) -> int:
    """As it is written: an escaped character counts with its backslash."""
    if isinstance(value, dict):
        return max((max(len(json.dumps(key)) - 2, longest_key(inner)) for key, inner in value.items()), default=0)
    return max(map(longest_key, value), default=0) if isinstance(value, list) else 0


def refused(text: str, limits: FileLimits) -> bool:
    try:
        measure_json(text, limits)
    except BadInput:
        return True
    return False


@settings(max_examples=300, deadline=None)
@given(VALUES)
def test_what_is_measured_is_what_is_there(value: Any) -> None:
    text = json.dumps(value)
    for measured, limit in ((depth(value), "depth"), (most_keys(value), "keys"), (longest_key(value), "key_length")):
        assert not refused(text, JOB_FILE._replace(**{limit: measured}))
        if measured:
            assert refused(text, JOB_FILE._replace(**{limit: measured - 1}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" + "{}," * 300_000 + "{}]", "has more than 500,000 keys and values; split it"),
        ("[" + "{}," * 10_000 + "{}]", "more than 10,000 documents; submit them in parts"),
        ("---\n{}\n" * 10_001, "more than 10,000 documents; submit them in parts"),
        (json.dumps({f"k{i}": 0 for i in range(2_001)}), "a mapping has more than 2,000 keys"),
        ("\n".join(f"k{i}: 0" for i in range(2_001)), "a mapping has more than 2,000 keys"),
        (json.dumps({"k" * 1_001: 0}), "a key has more than 1,000 characters"),
        ("? " + "k" * 1_001 + "\n: 0", "a key has more than 1,000 characters"),
        ("[" * 65 + "]" * 65, "nested too deeply: the limit is 64 levels"),
        ("a: " + "[" * 65 + "]" * 65, "nested too deeply: the limit is 64 levels"),
        ("- " * 100_000, "nested too deeply: the limit is 64 levels"),
        ("a: &a [x, x]\n" + "".join(f"{c}: &{c} [{f'*{b}, ' * 9}]\n" for b, c in zip("abcdefgh", "bcdefghi", strict=True)),
         "has more than 500,000 keys and values, counting each alias as often as it is used"),
    ],
    ids=lambda value: value[:20],
)  # fmt: skip
def test_a_job_file_beyond_a_limit(text: str, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        load(text)
    assert str(caught.value) == message


def test_a_file_at_the_limits_is_read() -> None:
    deep: Any = 0
    for _ in range(63):
        deep = [deep]
    value = {"deep": deep, "k" * 1_000: {f"k{i}": "[{,:" * 10 for i in range(2_000)}}
    assert parse_any(json.dumps(value), JOB_FILE) == [value]
    assert parse_documents("deep: " + "[" * 63 + "]" * 63, JOB_FILE)


def test_many_faults_of_many_documents_are_counted() -> None:
    job = {"apiVersion": "levada.dev/v1", "kind": "Job", "spec": {"run": {"command": ["x"]}}}
    many = [{**job, "metadata": {"name": f"a{i}"}, f"field{i}": 0, "more": 0} for i in range(1_000)]
    with pytest.raises(BadInput) as caught:
        load(json.dumps(many))
    assert [str(item) for item in caught.value.faults[:2]] == [
        "document 1: field0: unknown field",
        "document 1: more: unknown field",
    ]
    assert (len(caught.value.faults), caught.value.more) == (100, 1_900)


def test_a_fault_quotes_no_more_of_the_input_than_a_person_reads() -> None:
    job = {"apiVersion": "levada.dev/v1", "kind": "J" * 1_000_000, "metadata": {"name": "a"}, "k" * 900: 0}
    with pytest.raises(BadInput) as caught:
        load(json.dumps({**job, "kind": "Job"}))
    assert len(str(caught.value)) < 2_000
    with pytest.raises(BadInput) as caught:
        load(json.dumps(job))
    assert len(str(caught.value)) < 2_000


@pytest.mark.parametrize("text", ['""', '"a" ', "]", "}", '"]'])
def test_what_cannot_be_json_is_not_measured_to_its_end(text: str) -> None:
    began = time.process_time()
    measure_json(text * (4 * 2**20), JOB_FILE)
    assert time.process_time() - began < 1.0
    with pytest.raises(BadInput, match="not JSON"):
        parse_json(text * 1000, JOB_FILE)
