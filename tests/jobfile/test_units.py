"""The units people write."""

import pytest

from levada.jobfile.units import cpu_milli, duration_s, gpu_milli, memory_mib


@pytest.mark.parametrize(
    ("text", "mib"),
    [("8Gi", 8192), ("512Mi", 512), ("1073741824", 1024), ("1G", 954), ("1.5Gi", 1536), ("0", 0), ("1", 1)],
)
def test_memory(text: str, mib: int) -> None:
    assert memory_mib(text) == mib


@pytest.mark.parametrize(("value", "milli"), [(4, 4000), (0.5, 500), ("500m", 500), ("2", 2000), (0.0001, 1), ("0", 0)])
def test_cpu(value: str | float | int, milli: int) -> None:
    assert cpu_milli(value) == milli


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("2h", 7200), ("1h30m", 5400), ("7d", 604800), ("250ms", 0.25)]
)
def test_duration(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize(("value", "milli"), [(0, 0), (1, 1000), (0.5, 500), (0.001, 1), (0.333, 333), (8, 8000)])
def test_gpus(value: float | int, milli: int) -> None:
    assert gpu_milli(value) == milli


@pytest.mark.parametrize("text", ["", "Gi", "-1", "1gi", "8 Gi", "1e3", "٣"])
def test_bad_memory(text: str) -> None:
    with pytest.raises(ValueError):
        memory_mib(text)


@pytest.mark.parametrize("value", ["", "m", "-1", "nan", "inf", "1e99", "x", float("inf")])
def test_bad_cpu(value: str | float) -> None:
    with pytest.raises(ValueError):
        cpu_milli(value)


@pytest.mark.parametrize("text", ["", "2", "h", "2 h", "-2h", "2w", "9999999d"])
def test_bad_duration(text: str) -> None:
    with pytest.raises(ValueError):
        duration_s(text)


@pytest.mark.parametrize("value", [-1, 1.5, 0.0001, float("nan"), float("inf"), 1e300])
def test_bad_gpus(value: float) -> None:
    with pytest.raises(ValueError):
        gpu_milli(value)
