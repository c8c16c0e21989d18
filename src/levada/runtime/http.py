"""HTTP channel of a worker without a supervisor on its machine."""

from __future__ import annotations

import json
import time
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from levada.runtime.channel import Instructions
from levada.runtime.generation_file import parse_lease, parse_world
from levada.runtime.report import ProgressReport
from levada.runtime.worker_env import WorkerEnv


class HttpChannel:
    """Posts reports to a server. While the server is away, reports are dropped and counted."""

    period_s = 0.05
    #: Seconds between two reports, longest backoff after failures, and request timeout.
    EVERY_S, MAX_BACKOFF_S, LIMIT_S = 1.0, 5.0, 5.0

    def __init__(self, place: WorkerEnv) -> None:
        self._url = urlsplit(place.server)
        self._place = place
        self._connection: HTTPConnection | None = None
        self._next = 0.0
        self._wait_s = self.EVERY_S
        self.dropped = 0
        self.instructions = Instructions(place.world)
        self._last_report: ProgressReport | None = None

    def exchange(self, report: ProgressReport, urgent: bool) -> Instructions:
        """Post the report when one is due, or at once if its flags or generation have changed."""
        is_new = self._last_report is not None and self._last_report[:2] != report[:2] and self._wait_s == self.EVERY_S
        if not (is_new or urgent or time.monotonic() >= self._next):
            return self.instructions
        try:
            answer = self._post(report)
            self._wait_s = self.EVERY_S
            self._last_report = report
            self.instructions = _parse(answer, self.instructions)
        except (OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError):
            self._disconnect()
            self.dropped += 1
            self._wait_s = min(2 * self._wait_s, self.MAX_BACKOFF_S)
        self._next = time.monotonic() + self._wait_s
        return self.instructions

    def _post(self, report: ProgressReport) -> Any:
        place = self._place
        body = {
            "job": place.job,
            "generation": report.generation or place.generation,
            "rank": self._rank(report.generation),
            "flags": report.flags,
            # A worker that has not entered a generation does not know the steps of the checkpoint yet.
            "step": report.step if report.generation else None,
            "step_s": report.step_s,
            "saves": report.saves,
            "saved_step": report.saved_step,
        }
        if self._connection is None:
            kind = HTTPSConnection if self._url.scheme == "https" else HTTPConnection
            self._connection = kind(self._url.hostname or "127.0.0.1", self._url.port, timeout=self.LIMIT_S)
        path = self._url.path.rstrip("/") + "/api/v1/worker/report"
        self._connection.request("POST", path, json.dumps(body), self._headers())
        response = self._connection.getresponse()
        text = response.read()
        if response.status >= 300:
            raise HTTPException(f"status {response.status}")
        answer = json.loads(text) if text.strip() else {}
        if not isinstance(answer, dict):
            raise ValueError("the answer is not an object")
        return answer

    def _headers(self) -> dict[str, str]:
        """The headers of a report; a token in a file is read again, because it expires."""
        token = self._place.token
        if self._place.token_file:
            token = Path(self._place.token_file).read_text().strip()
        return {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def _rank(self, generation: int) -> int:
        world = self.instructions.world
        if world is not None and world.generation == generation:
            rank = world.rank(self._place.worker)
            if rank is not None:
                return rank
        return self._place.rank

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _parse(answer: Any, before: Instructions) -> Instructions:
    """Parse the answer of a server; fields it leaves out keep their value."""
    world, lease = answer.get("world"), answer.get("lease")
    return Instructions(
        before.world if world is None else parse_world(world), before.lease if lease is None else parse_lease(lease)
    )
