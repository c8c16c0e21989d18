"""The structure of policies: none inherits from another."""

from __future__ import annotations

from importlib import import_module
from typing import Generic

import pytest

from levada.policies.catalog import POLICIES, PolicyInfo
from levada.policies.gavel.share import ShareDefaults


@pytest.mark.parametrize("info", POLICIES, ids=lambda info: info.name)
def test_no_policy_inherits_from_another(info: PolicyInfo) -> None:
    module, _, cls = info.target.partition(":")
    policy = getattr(import_module(module), cls)
    assert set(policy.__mro__) <= {policy, ShareDefaults, Generic, object}


def test_names_and_aliases_are_unique() -> None:
    names = [name for info in POLICIES for name in (info.name, *info.aliases)]
    assert len(names) == len(set(names))
