"""Workload files: arrivals, durations, sizes and workloads of generated jobs."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from levada.core.job import LARGEST_SIZE
from levada.errors import BadInput, Fault
from levada.jobfile.faults import bad_input, fault
from levada.jobfile.fields import Duration, Text
from levada.jobfile.text import parse_documents


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


Share = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Length = Annotated[Duration, Field(gt=0)]


# ---------------------------------------------------------------------------------------------------------- arrivals


class Poisson(_Model):
    """Independent arrivals; `daily` is the relative amplitude of the rate between midnight and noon."""

    process: Literal["poisson"]
    rate: Above0 = Field(description="Jobs per hour.")
    daily: Annotated[float, Field(ge=0, le=1)] = 0.0


class Regular(_Model):
    """Jobs at equal intervals."""

    process: Literal["regular"]
    rate: Above0 = Field(description="Jobs per hour.")


class Bursts(_Model):
    """Groups of simultaneous jobs: geometric sizes, Poisson arrivals; `rate` counts jobs."""

    process: Literal["bursts"]
    rate: Above0 = Field(description="Jobs per hour.")
    size: Annotated[float, Field(ge=1, allow_inf_nan=False)] = Field(description="Mean jobs of a burst.")


class AtOnce(_Model):
    """All jobs at time 0."""

    process: Literal["at-once"]


Arrivals: TypeAlias = Annotated[Poisson | Regular | Bursts | AtOnce, Field(discriminator="process")]


# --------------------------------------------------------------------------------------------------------- durations


class _Law(_Model):
    share: Share = Field(default=1.0, description="Weight of this distribution in the mix.")


class Fixed(_Law):
    """A constant duration."""

    law: Literal["fixed"]
    value: Length


class _Between(_Law):
    min: Length
    max: Length

    @model_validator(mode="after")
    def _ordered(self) -> _Between:
        if self.max < self.min:
            raise fault("max must be at least min")
        return self


class Uniform(_Between):
    """Uniform between `min` and `max`."""

    law: Literal["uniform"]


class LogUniform(_Between):
    """Uniform in the logarithm between `min` and `max`."""

    law: Literal["log-uniform"]


class LogNormal(_Law):
    """Log-normal; `sigma` is the standard deviation of the natural logarithm."""

    law: Literal["log-normal"]
    median: Length
    sigma: Above0


class Exponential(_Law):
    """Exponential with this mean."""

    law: Literal["exponential"]
    mean: Length


Law: TypeAlias = Annotated[Fixed | Uniform | LogUniform | LogNormal | Exponential, Field(discriminator="law")]


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, dict) else value


Laws: TypeAlias = Annotated[list[Law], Field(min_length=1), BeforeValidator(_as_list)]


# --------------------------------------------------------------------------------------------------------------- all


def _number_keys(value: Any) -> Any:
    """Convert keys to numbers; JSON has only text keys."""
    if not isinstance(value, dict):
        return value
    return {_as_number(key): share for key, share in value.items()}


def _as_number(key: Any) -> Any:
    try:
        return (int(key) if key.isdigit() else float(key)) if isinstance(key, str) else key
    except ValueError:
        return key


Scale = Annotated[int, Field(ge=1, le=LARGEST_SIZE)]
Scales: TypeAlias = Annotated[dict[Scale, Share], Field(min_length=1), BeforeValidator(_number_keys)]
Numbers: TypeAlias = Annotated[dict[Above0, Share], Field(min_length=1), BeforeValidator(_number_keys)]


class WorkloadSpec(_Model):
    """A workload. A mix maps values to shares, which need not add up to 1."""

    arrivals: Arrivals
    duration: Laws = Field(description="One distribution, or a weighted list.")
    scale: Scales = Field(default={1: 1.0}, description="GPUs.")
    workloads: Annotated[dict[Text, Share], Field(min_length=1)] | None = Field(
        default=None,
        description="Default: all of the catalogue with equal shares; multi-GPU jobs only draw distributed ones.",
    )
    weight: Numbers = {1.0: 1.0}
    slo: Numbers | None = Field(default=None, description="Deadlines as multiples of the duration; default: none.")


def parse(text: str, file: str) -> WorkloadSpec:
    """Parse a workload in YAML or JSON; raises BadInput with all faults."""
    documents = parse_documents(text)
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise BadInput.one(f"{file}: must contain one mapping with arrivals and duration")
    try:
        return WorkloadSpec.model_validate(documents[0])
    except ValidationError as error:
        details = error.errors(include_url=False)
        bad = bad_input(error, WorkloadSpec)
        pairs = zip(bad.faults, details, strict=False)
        faults = [Fault(_path(fault.path), _text(detail) or fault.text) for fault, detail in pairs]
        raise BadInput(faults, bad.more) from None


def _path(path: str) -> str:
    """Return *path* without the name of the law or process, which pydantic inserts."""
    kinds = "|".join(get_args(model.model_fields[key].annotation)[0] for key, model in _KINDS)
    return re.sub(rf"^(arrivals|duration\[\d+\])\.({kinds})(?=\.|$)", r"\1", path)


def _text(detail: ErrorDetails) -> str:
    """Return the message for an unknown or missing law or process; "" for other faults."""
    if not detail["type"].startswith("union_tag"):
        return ""
    key = str(detail["ctx"]["discriminator"]).strip("'")
    known = [get_args(model.model_fields[key].annotation)[0] for kind, model in _KINDS if kind == key]
    return f"{key} must be one of {', '.join(known)}"


_KINDS: tuple[tuple[str, type[BaseModel]], ...] = (
    *(("process", model) for model in (Poisson, Regular, Bursts, AtOnce)),
    *(("law", model) for model in (Fixed, Uniform, LogUniform, LogNormal, Exponential)),
)
