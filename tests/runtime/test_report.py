"""Progress report of a worker, as read by the supervisor."""

from __future__ import annotations

import struct
import threading
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from levada.runtime.report import ProgressReport, Writer, read


def test_every_field_has_its_documented_offset(tmp_path: Path) -> None:
    Writer(tmp_path).write(ProgressReport(3, 7, 1500.0, 1.79e9, 0.25, 4, 1400.0, 0.5, 9))
    data = (tmp_path / "report").read_bytes()
    assert len(data) == 128
    assert data[:8] == b"LEVADA1\0"
    whole = {at: struct.unpack_from("<Q", data, at)[0] for at in (16, 24, 56, 80)}
    real = {at: struct.unpack_from("<d", data, at)[0] for at in (32, 40, 48, 64, 72)}
    assert whole == {16: 3, 24: 7, 56: 4, 80: 9}
    assert real == {32: 1500.0, 40: 1.79e9, 48: 0.25, 64: 1400.0, 72: 0.5}
    assert struct.unpack_from("<Q", data, 8)[0] % 2 == 0


counts, reals = st.integers(0, 2**64 - 1), st.floats(allow_nan=False)


@given(st.builds(ProgressReport, counts, counts, reals, reals, reals, counts, reals, reals, counts))
def test_a_written_report_is_read_back(tmp_path_factory: object, report: ProgressReport) -> None:
    folder = Path(tmp_path_factory.mktemp("report"))  # type: ignore[attr-defined]
    Writer(folder).write(report)
    assert read(folder / "report") == report


def test_a_missing_or_invalid_file_is_no_report(tmp_path: Path) -> None:
    assert read(tmp_path / "report") is None
    (tmp_path / "report").write_bytes(b"short")
    assert read(tmp_path / "report") is None
    (tmp_path / "report").write_bytes(b"x" * 128)
    assert read(tmp_path / "report") is None


def test_an_incomplete_write_is_no_report(tmp_path: Path) -> None:
    Writer(tmp_path).write(ProgressReport(step=5.0))
    data = bytearray((tmp_path / "report").read_bytes())
    data[8:16] = struct.pack("<Q", 3)
    (tmp_path / "report").write_bytes(data)
    assert read(tmp_path / "report") is None


def test_concurrent_readers_see_only_complete_reports(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    stop = threading.Event()

    def write() -> None:
        value = 0
        while not stop.is_set():
            value += 1
            writer.write(ProgressReport(value, value, float(value), float(value), float(value), value, float(value)))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        reports = [read(tmp_path / "report") for _ in range(2000)]
    finally:
        stop.set()
        thread.join()
    whole = [report for report in reports if report is not None]
    assert len(whole) > 100
    assert all(len(set(report[:7])) == 1 for report in whole)
