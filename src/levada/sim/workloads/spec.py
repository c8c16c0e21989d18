"""A workload of the user's own, as a small file: how jobs arrive, how long, how large and of what kind they are."""

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
    """Arrivals that know nothing of each other; `daily` makes noon busier than midnight by that part."""

    process: Literal["poisson"]
    rate: Above0 = Field(description="Jobs per hour.")
    daily: Annotated[float, Field(ge=0, le=1)] = 0.0


class Regular(_Model):
    """One job after the other at even distances."""

    process: Literal["regular"]
    rate: Above0 = Field(description="Jobs per hour.")


class Bursts(_Model):
    """Groups of jobs that come together: geometric sizes, Poisson in between; `rate` counts jobs."""

    process: Literal["bursts"]
    rate: Above0 = Field(description="Jobs per hour.")
    size: Annotated[float, Field(ge=1, allow_inf_nan=False)] = Field(description="Mean jobs of a burst.")


class AtOnce(_Model):
    """All jobs at time 0."""

    process: Literal["at-once"]


Arrivals: TypeAlias = Annotated[Poisson | Regular | Bursts | AtOnce, Field(discriminator="process")]


# --------------------------------------------------------------------------------------------------------- durations


class _Law(_Model):
    share: Share = Field(default=1.0, description="Weight of this law among several.")


class Fixed(_Law):
    """Always the same."""

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
    """Any between two."""

    law: Literal["uniform"]


class LogUniform(_Between):
    """Any magnitude between two."""

    law: Literal["log-uniform"]


class LogNormal(_Law):
    """Most near the median, few far longer; `sigma` is of the natural logarithm."""

    law: Literal["log-normal"]
    median: Length
    sigma: Above0


class Exponential(_Law):
    """Without memory."""

    law: Literal["exponential"]
    mean: Length


Law: TypeAlias = Annotated[Fixed | Uniform | LogUniform | LogNormal | Exponential, Field(discriminator="law")]


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, dict) else value


Laws: TypeAlias = Annotated[list[Law], Field(min_length=1), BeforeValidator(_as_list)]


# --------------------------------------------------------------------------------------------------------------- all


def _number_keys(value: Any) -> Any:
    """Keys as numbers: JSON can only write them as text."""
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


class Spec(_Model):
    """A workload. A mix gives each value its share; shares need not add up to anything."""

    arrivals: Arrivals
    duration: Laws = Field(description="A law, or several with shares.")
    scale: Scales = Field(default={1: 1.0}, description="GPUs.")
    workloads: Annotated[dict[Text, Share], Field(min_length=1)] | None = Field(
        default=None, description="All of the catalogue alike unless given; several GPUs only for those that can."
    )
    weight: Numbers = {1.0: 1.0}
    slo: Numbers | None = Field(default=None, description="Deadlines as multiples of the duration; none unless given.")


def parse(text: str, file: str) -> Spec:
    """The workload in a YAML or JSON text; raises BadInput with all faults."""
    documents = parse_documents(text)
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise BadInput.one(f"{file}: must hold one mapping with arrivals and duration")
    try:
        return Spec.model_validate(documents[0])
    except ValidationError as error:
        details = error.errors(include_url=False)
        bad = bad_input(error, Spec)
        found = zip(bad.faults, details, strict=False)
        faults = [Fault(_path(each.path), _text(detail) or each.text) for each, detail in found]
        raise BadInput(faults, bad.more) from None


def _path(path: str) -> str:
    """*path* as the user wrote it: pydantic names the kind of a law or process in it, too."""
    kinds = "|".join(get_args(each.model_fields[key].annotation)[0] for key, each in _KINDS)
    return re.sub(rf"^(arrivals|duration\[\d+\])\.({kinds})(?=\.|$)", r"\1", path)


def _text(detail: ErrorDetails) -> str:
    """What to say about a law or process that does not exist or has no name; empty for other faults."""
    if not detail["type"].startswith("union_tag"):
        return ""
    key = str(detail["ctx"]["discriminator"]).strip("'")
    known = [get_args(each.model_fields[key].annotation)[0] for of, each in _KINDS if of == key]
    return f"{key} must be one of {', '.join(known)}"


_KINDS: tuple[tuple[str, type[BaseModel]], ...] = (
    *(("process", each) for each in (Poisson, Regular, Bursts, AtOnce)),
    *(("law", each) for each in (Fixed, Uniform, LogUniform, LogNormal, Exponential)),
)
