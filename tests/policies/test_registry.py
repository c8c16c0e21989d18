"""Policies by name, and their options."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

import pytest

from levada.errors import BadInput
from levada.policies import registry
from levada.policies.catalog import POLICIES, PolicyInfo
from tests.policies.test_laws import BY_NODE

MADE = [record for record in POLICIES if record.name not in BY_NODE]


@pytest.mark.parametrize("record", MADE, ids=[record.name for record in MADE])
def test_every_name_and_alias_makes_its_policy(record: PolicyInfo) -> None:
    for name in (record.name, *record.aliases):
        assert registry.make(name).name == record.name


@pytest.mark.parametrize("record", MADE, ids=[record.name for record in MADE])
def test_the_table_tells_the_options_as_they_are(record: PolicyInfo) -> None:
    module, _, cls = record.target.partition(":")
    created = getattr(import_module(module), cls)
    own = {name: parameter.default for name, parameter in inspect.signature(created).parameters.items()}
    messages = {option.name: option.default for option in record.options}
    if record.shares:
        assert (messages.pop("round_s"), messages.pop("mechanism"), messages.pop("global_queue")) == (
            360.0,
            "default",
            False,
        )
        assert messages.pop("placement", False) is False
        own = {name: default if default is not None else "" for name, default in own.items()} | created.in_rounds
    assert messages == own


def test_names_are_those_of_the_table() -> None:
    assert registry.names() == tuple(record.name for record in POLICIES)


@pytest.mark.parametrize(
    ("name", "options", "path", "text"),
    [
        ("fifoo", {}, "policy", "did you mean"),
        ("fifo", {"speed": 1}, "options.speed", "fifo has no options"),
        ("tiresias", {"queue_limits": 1.0}, "options.queue_limits", "did you mean queue_limit?"),
        ("tiresias", {"speed": 1.0}, "options.speed", "tiresias has the options queue_limit, promote_knob"),
        ("tiresias", {"queue_limit": "1h"}, "options.queue_limit", "must be a finite number, not '1h'"),
        ("tiresias", {"queue_limit": True}, "options.queue_limit", "must be a finite number"),
        ("tiresias", {"queue_limit": float("nan")}, "options.queue_limit", "must be a finite number"),
        ("tiresias", {"queue_limit": 0}, "options.queue_limit", "must be above 0"),
        ("tiresias", {"promote_knob": -8.0}, "options.promote_knob", "must be above 0"),
        ("elastic-tiresias", {"compaction_threshold": 1.5}, "options.compaction_threshold", "whole number"),
        ("elastic-tiresias", {"compaction_threshold": -1}, "options.compaction_threshold", "at least 0"),
    ],
)
def test_bad_input_is_told_with_its_place(name: str, options: dict[str, Any], path: str, text: str) -> None:
    with pytest.raises(BadInput) as error:
        registry.make(name, options)
    (fault,) = error.value.faults
    assert fault.path == path
    assert text in fault.text


def test_all_unknown_options_are_told_at_once() -> None:
    with pytest.raises(BadInput) as error:
        registry.make("ffdl", {"a": 1, "b": 2})
    assert [fault.path for fault in error.value.faults] == ["options.a", "options.b"]
