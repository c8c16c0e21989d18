"""The example of docs/api.md runs."""

import re
import threading
import time
from pathlib import Path

import pytest

from tests.server.http_server import Served
from tests.timeouts import WAIT_S

PAGE = Path(__file__).parents[2] / "docs" / "api.md"


def test_the_example_runs(up: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    monkeypatch.setenv("LEVADA_SERVER", up.url)
    monkeypatch.setenv("LEVADA_TOKEN", up.tokens["user"])

    def train() -> None:
        end = time.monotonic() + WAIT_S
        while not up.service.by_id and time.monotonic() < end:
            time.sleep(0.01)
        job = next(iter(up.service.by_id))
        up.run(lambda: up.service.add_output(job, "trained"))
        up.run(lambda: up.service.end(job))

    worker = threading.Thread(target=train)
    worker.start()
    names: dict[str, object] = {}
    exec(code, names)
    worker.join(WAIT_S)
    assert names["job"]["phase"] == "Succeeded"  # type: ignore[index]
    assert capsys.readouterr().out.endswith("0 trained\n")
