"""Request bodies and pages of the API; answers are in `levada.api.types`."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from levada.api.types import RoleName

T = TypeVar("T")

#: The largest integer that every JSON parser reads exactly.
LARGEST = 2**53 - 1
Name = Annotated[str, Field(min_length=1, max_length=253)]
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class RequestBody(BaseModel):
    """A request body; unknown fields are rejected."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Page(BaseModel, Generic[T]):
    """A page; `next` is the cursor of the next page, null on the last one."""

    items: list[T]
    next: str | None = None


def _whole(value: Any) -> Any:
    """Accept 1.0 as an integer: JSON has only numbers."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole, json_schema_input_type=int)]


def _absent() -> Any:
    """Default of a field that is optional but not nullable; never read."""
    return None


class Update(RequestBody):
    """Changes of a job; at least one field."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    priority: Annotated[Whole, Field(ge=-LARGEST, le=LARGEST)] = Field(default_factory=_absent)
    queue: Name = Field(default_factory=_absent)
    min: Annotated[Whole, Field(ge=1, le=LARGEST)] = Field(default_factory=_absent)
    max: Annotated[Whole, Field(ge=1, le=LARGEST)] = Field(default_factory=_absent)
    weight: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)] = Field(default_factory=_absent)
    preemptible: Literal["auto"] | bool = Field(default_factory=_absent)


class Scale(RequestBody):
    """A new size of a job."""

    workers: Annotated[Whole, Field(ge=1, le=1_000_000)]


class WhatIf(RequestBody):
    """Hypothetical jobs."""

    documents: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=1000)]
    policy: Name | None = None


class Reserve(RequestBody):
    """GPUs to reserve."""

    gpus: Annotated[Whole, Field(ge=1, le=1_000_000)]
    seconds: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
    gpu_type: Name | None = None
    node: Name | None = None


class SetPolicy(RequestBody):
    """A new policy."""

    name: Name
    options: dict[str, Any] = {}


class RateLimit(RequestBody):
    """Minimum time between two decisions."""

    seconds: Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)]


class NewToken(RequestBody):
    """A token to create."""

    user: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@-]{0,62}$")] | None = Field(
        default=None, description="Owner of the token; default: yourself."
    )
    role: RoleName = "user"
    expires_s: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)] | None = None


class WorkerReport(RequestBody):
    """Report of a worker; the fields of its report file."""

    job: Name | None = Field(default=None, description="Id of its own job; optional.")
    generation: Annotated[Whole, Field(ge=0, le=LARGEST)] | None = Field(
        default=None, description="Generation of the worker; not used."
    )
    rank: Annotated[Whole, Field(ge=0, le=LARGEST)] | None = None
    flags: Annotated[Whole, Field(ge=0, le=2**32)] | None = Field(
        default=None,
        description="Sum of: 1 uses the runtime, 2 resizes in place, 4 training is complete, 8 exits on request, "
        "16 saves a checkpoint when asked to exit, 32 exit code 0 alone does not end the job.",
    )
    step: Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)] | None = Field(
        default=None, description="Completed steps of the whole job."
    )
    step_s: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] | None = Field(
        default=None, description="Seconds per step."
    )
    saves: Annotated[Whole, Field(ge=0, le=LARGEST)] | None = Field(default=None, description="Number of checkpoints.")
    saved_step: Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)] | None = Field(
        default=None, description="Step of the last checkpoint."
    )
