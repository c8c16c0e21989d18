"""Policies by name: look up, suggest similar names, check options and create.

Importing this module is cheap (`levada policy ls` imports it); `make` imports the policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from levada import errors
from levada.errors import BadInput, Fault, did_you_mean
from levada.policies.catalog import POLICIES, PolicyInfo

if TYPE_CHECKING:
    from levada.policies.gavel.share import AnySharePolicy
    from levada.policies.protocol import AnyPolicy

#: The shortest accepted round; with 0 simulated time would never advance.
SHORTEST_ROUND_S = 0.001

_BY_NAME = {name: info for info in POLICIES for name in (info.name, *info.aliases)}


def names() -> tuple[str, ...]:
    """The canonical names, in the order of the catalog."""
    return tuple(info.name for info in POLICIES)


def lookup(name: str) -> PolicyInfo | None:
    """The policy with this name, alias or Gavel spelling (`allox_alpha=0.5`), or None."""
    return _BY_NAME.get("allox" if alpha_of(name) is not None else name)


def alpha_of(name: str) -> float | None:
    """The option in Gavel's name `allox_alpha=0.5`; None for any other name."""
    before, equals, value = name.partition("=")
    if not equals or before != "allox_alpha":
        return None
    try:
        return float(value)
    except ValueError:
        return None


def nearest(name: str) -> list[str]:
    """Policy names similar to *name*, best first; a clear winner is returned alone."""
    return list(dict.fromkeys(_BY_NAME[close].name for close in errors.nearest(name, _BY_NAME)))


def unknown(name: str, others: Iterable[str] = ()) -> str:
    """The error text for an unknown policy, with similar names and *others*."""
    candidates = {**_BY_NAME, **{other: None for other in others if other not in _BY_NAME}}
    similar = [info.name if (info := candidates[close]) else close for close in errors.nearest(name, candidates)]
    hint = f"did you mean {' or '.join(dict.fromkeys(similar))}?" if similar else "see levada policy ls"
    return f"unknown policy {name!r}; {hint}"


def check_names(policy: str, known: Sequence[str], options: Iterable[str]) -> None:
    """Raise BadInput for every unknown name in *options*, with the nearest known one."""
    listing = f"{policy} has the options {', '.join(known)}" if known else f"{policy} has no options"
    unknown_names = [name for name in options if name not in known]
    if unknown_names:
        raise BadInput(
            Fault(f"options.{name}", "unknown option" + did_you_mean(str(name), known, listing))
            for name in unknown_names
        )


def make(name: str, options: Mapping[str, Any] | None = None) -> AnyPolicy:
    """Create a policy by name; raises BadInput for a bad name, option or value."""
    settings = dict(options or {})
    info = lookup(name)
    if info is None:
        raise BadInput.one(unknown(name), "policy")
    if (alpha := alpha_of(name)) is not None:
        settings.setdefault("alpha", alpha)
    check_names(info.name, [option.name for option in info.options], settings)
    module, _, cls = info.target.partition(":")
    policy_class = getattr(import_module(module), cls)
    return _make_in_rounds(policy_class, settings) if info.shares else cast("AnyPolicy", policy_class(**settings))


def _make_in_rounds(policy_class: Any, settings: dict[str, Any]) -> AnyPolicy:
    """A share policy in the mechanism that turns shares into sizes; raises BadInput."""
    from levada.policies.options import number_above
    from levada.policies.rounds import Rounds

    round_s = number_above("round_s", settings.pop("round_s", 360.0), SHORTEST_ROUND_S)
    mechanism = settings.pop("mechanism", "default")
    global_queue = settings.pop("global_queue", False)
    if mechanism not in ("default", "gavel"):
        raise BadInput.one(f"must be default or gavel, not {mechanism!r}", "options.mechanism")
    if mechanism == "gavel":
        from levada.compat.gavel.published_rounds import Published

        policy = _make_share_policy(policy_class, settings)
        return cast("AnyPolicy", Published(policy, round_s=round_s, global_queue=bool(global_queue)))
    policy = _make_share_policy(policy_class, {**policy_class.in_rounds, **settings})
    return cast("AnyPolicy", Rounds(policy, round_s=round_s))


def _make_share_policy(policy_class: Any, settings: dict[str, Any]) -> AnySharePolicy:
    """The share policy, with rates by placement if requested; raises BadInput."""
    from levada.policies.gavel.placement import Placed

    placement = settings.pop("placement", False)
    if not isinstance(placement, bool):
        raise BadInput.one("must be true or false", "options.placement")
    policy: AnySharePolicy = policy_class(**settings)
    return cast("AnySharePolicy", Placed(policy)) if placement else policy
