"""Field types that several files share: names, counts, quantities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field

from levada.jobfile import units
from levada.jobfile.faults import fault

_T = TypeVar("_T")


def _reading(parse: Callable[[str], _T]) -> Callable[[Any], Any]:
    """A validator that parses text and passes everything else to the field's type."""

    def read(value: Any) -> Any:
        return parse(value) if isinstance(value, str) else value

    return read


def _memory(value: Any) -> Any:
    is_bytes = isinstance(value, int) and not isinstance(value, bool)
    return units.memory_mib(str(value)) if is_bytes or isinstance(value, str) else value


def _cpu(value: Any) -> Any:
    is_number = isinstance(value, (str, int, float)) and not isinstance(value, bool)
    return units.cpu_milli(value) if is_number else value


def _gpus(value: float) -> float:
    units.gpu_milli(value)
    return value


def _known_once(values: list[str]) -> list[str]:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise fault(f"{value!r} is given twice")
        seen.add(value)
    return values


_Bytes = Annotated[int, Field(ge=0)]
_MemoryText = Annotated[str, Field(pattern=units.MEMORY_PATTERN)]
_CpuText = Annotated[str, Field(pattern=units.CPU_PATTERN)]
DurationText = Annotated[str, Field(pattern=units.DURATION_PATTERN)]

Count = Annotated[int, Field(ge=0, le=units.LARGEST)]
Positive = Annotated[int, Field(ge=1, le=units.LARGEST)]
#: Workers or parameter servers.
Size = Annotated[int, Field(ge=1, le=1_000_000)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
#: Seconds as a plain number, at most 31 years; kernel clocks overflow after 292 years.
Seconds = Annotated[float, Field(ge=0, le=units.LARGEST, allow_inf_nan=False)]
Weight = Annotated[float, Field(gt=0, le=units.LARGEST, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1, max_length=253)]
GpuType = Annotated[str, Field(min_length=1, max_length=63)]
#: Above any real cluster; bounds the size of tables.
_MOST_TYPES = 256
GpuTypes = Annotated[list[GpuType], Field(max_length=_MOST_TYPES), AfterValidator(_known_once)]
#: GPUs by type.
Gpus = Annotated[dict[GpuType, Count], Field(max_length=_MOST_TYPES)]

#: MiB, from a Kubernetes quantity: a plain number is bytes.
Memory = Annotated[Count, BeforeValidator(_memory, json_schema_input_type=_Bytes | _MemoryText)]
#: MiB, as a plain number or as a quantity.
MemoryMib = Annotated[Count, BeforeValidator(_reading(units.memory_mib), json_schema_input_type=Count | _MemoryText)]
#: 1/1000ths of a core.
Cpu = Annotated[Count, BeforeValidator(_cpu, json_schema_input_type=NotNegative | _CpuText)]
#: Seconds; a plain number is seconds too.
Duration = Annotated[
    Seconds, BeforeValidator(_reading(units.duration_s), json_schema_input_type=Seconds | DurationText)
]
#: 0, a whole number, or a fraction of one GPU in steps of 0.001.
GpusPerWorker = Annotated[NotNegative, AfterValidator(_gpus)]
