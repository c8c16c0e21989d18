"""Any text or value gives checked documents or faults, and nothing else."""

import json
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from levada.errors import BadInput
from levada.jobfile.load import ALL_KINDS, check, load
from levada.jobfile.script import from_script
from levada.sdk.prepare import with_folder
from tests.jobfile.manifests import MPI, POD, TF, TORCH
from tests.jobfile.test_load import JOB

EXAMPLES: list[dict[str, Any]] = [yaml.safe_load(JOB), MPI, TF, TORCH, POD]

scalars = (
    st.none() | st.booleans() | st.integers(-5, 12) | st.integers() | st.floats()
    | st.sampled_from(["", "0", "1", "-1", "0.5", "8Gi", "true", "²", "9" * 30, "a", "1e400", "\ud800", *ALL_KINDS])
    | st.text(max_size=8)
)  # fmt: skip
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
)


def paths(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place inside *value*."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [before, *(path for key, item in inner for path in paths(item, (*before, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """*value* with *new* at *path*."""
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


@st.composite
def nearly_right(draw: st.DrawFn) -> Any:
    """An example in which a few values are something else."""
    example: Any = draw(st.sampled_from(EXAMPLES))
    for _ in range(draw(st.integers(1, 3))):
        example = replaced(example, draw(st.sampled_from(paths(example))), draw(values))
    return example


@settings(max_examples=400, deadline=None)
@given(nearly_right() | values)
def test_values(value: Any) -> None:
    try:
        document = check(value)
    except BadInput as error:
        assert error.faults
    else:
        check(with_folder(document.source, "/tmp"))


@settings(max_examples=200, deadline=None)
@given(st.text() | st.text(alphabet="{}[]:,-&*!|>'\"\n ab1", max_size=40) | values.map(lambda v: json.dumps(v)))
def test_text(text: str) -> None:
    try:
        load(text)
    except BadInput as error:
        assert error.faults


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["#SBATCH ", "#LEVADA ", "#SBATCH --array=", "#SBATCH --time=", "#SBATCH --gres=gpu:", ""]),
            st.text(alphabet="-=:,%'\"aN 019\\", max_size=12),
        ),
        max_size=4,
    )
)
def test_scripts(pairs: list[tuple[str, str]]) -> None:
    text = "\n".join(["#!/bin/sh", *(start + rest for start, rest in pairs)])
    try:
        check(from_script(text, "/x/run.sh", environment={}).document)
    except BadInput as error:
        assert error.faults
