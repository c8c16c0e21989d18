"""Policies by name: what `--policy` and a case's `policy` mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, cast

from levada.errors import BadInput, Fault, did_you_mean
from levada.policies.gavel.mechanism import in_rounds
from levada.policies.gavel.placement import Placed
from levada.policies.gavel.share import AnySharePolicy
from levada.policies.protocol import AnyPolicy
from levada.policies.table import POLICIES, alpha_of, lookup, unknown


def names() -> tuple[str, ...]:
    """The canonical names, in the order of the table."""
    return tuple(record.name for record in POLICIES)


def make(name: str, options: Mapping[str, Any] | None = None) -> AnyPolicy:
    """The policy of this name or alias; raises BadInput for an unknown name or option, or a value it cannot have."""
    given = dict(options or {})
    record = lookup(name)
    if record is None:
        raise BadInput.one(unknown(name), "policy")
    if (alpha := alpha_of(name)) is not None:
        given.setdefault("alpha", alpha)
    check_names(record.name, [option.name for option in record.options], given)
    module, _, cls = record.target.partition(":")
    make_one = getattr(import_module(module), cls)
    if not record.shares:
        alone: AnyPolicy = make_one(**given)
        return alone
    rounds: AnyPolicy = in_rounds(partial(_make_share_policy, make_one), given, make_one.in_rounds)
    return rounds


def _make_share_policy(make_one: Any, *, placement: Any = False, **options: Any) -> AnySharePolicy:
    """The share policy, which sees where jobs would stand if it shall; raises BadInput."""
    if not isinstance(placement, bool):
        raise BadInput.one("must be true or false", "options.placement")
    policy: AnySharePolicy = make_one(**options)
    return cast(AnySharePolicy, Placed(policy)) if placement else policy


def check_names(policy: str, known: Sequence[str], options: Iterable[str]) -> None:
    """Raises BadInput for each of *options* that the policy does not know, with the one that was probably meant."""
    has = f"{policy} has the options {', '.join(known)}" if known else f"{policy} has no options"
    strange = [name for name in options if name not in known]
    if strange:
        raise BadInput(
            Fault(f"options.{name}", "unknown option" + did_you_mean(str(name), known, has)) for name in strange
        )
