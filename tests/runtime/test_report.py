"""The report of a worker, as the supervisor finds it."""

from __future__ import annotations

import struct
import threading
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from levada.runtime.report import Report, Writer, read


def test_every_field_is_where_the_contract_says(tmp_path: Path) -> None:
    Writer(tmp_path).write(Report(3, 7, 1500.0, 1.79e9, 0.25, 4, 1400.0, 0.5, 9))
    data = (tmp_path / "report").read_bytes()
    assert len(data) == 128
    assert data[:8] == b"LEVADA1\0"
    whole = {at: struct.unpack_from("<Q", data, at)[0] for at in (16, 24, 56, 80)}
    real = {at: struct.unpack_from("<d", data, at)[0] for at in (32, 40, 48, 64, 72)}
    assert whole == {16: 3, 24: 7, 56: 4, 80: 9}
    assert real == {32: 1500.0, 40: 1.79e9, 48: 0.25, 64: 1400.0, 72: 0.5}
    assert struct.unpack_from("<Q", data, 8)[0] % 2 == 0


counts, reals = st.integers(0, 2**64 - 1), st.floats(allow_nan=False)


@given(st.builds(Report, counts, counts, reals, reals, reals, counts, reals, reals, counts))
def test_what_was_written_is_read(tmp_path_factory: object, report: Report) -> None:
    folder = Path(tmp_path_factory.mktemp("report"))  # type: ignore[attr-defined]
    Writer(folder).write(report)
    assert read(folder / "report") == report


def test_nothing_and_nonsense_are_no_report(tmp_path: Path) -> None:
    assert read(tmp_path / "report") is None
    (tmp_path / "report").write_bytes(b"short")
    assert read(tmp_path / "report") is None
    (tmp_path / "report").write_bytes(b"x" * 128)
    assert read(tmp_path / "report") is None


def test_a_writer_that_died_half_way_left_no_report(tmp_path: Path) -> None:
    Writer(tmp_path).write(Report(step=5.0))
    data = bytearray((tmp_path / "report").read_bytes())
    data[8:16] = struct.pack("<Q", 3)
    (tmp_path / "report").write_bytes(data)
    assert read(tmp_path / "report") is None


def test_readers_never_see_half_of_a_report(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    ends = threading.Event()

    def write() -> None:
        value = 0
        while not ends.is_set():
            value += 1
            writer.write(Report(value, value, float(value), float(value), float(value), value, float(value)))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        seen = [read(tmp_path / "report") for _ in range(2000)]
    finally:
        ends.set()
        thread.join()
    whole = [report for report in seen if report is not None]
    assert len(whole) > 100
    assert all(len(set(report[:7])) == 1 for report in whole)
