"""The channel of a worker whose supervisor is a server somewhere else."""

from __future__ import annotations

import json
import time
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from levada.runtime.channel import News
from levada.runtime.place import Place
from levada.runtime.report import Report
from levada.runtime.world import parse_lease, parse_world


class HttpChannel:
    """A server somewhere else. One that is away loses reports, which are counted, and nothing more."""

    pace_s = 0.05
    #: Seconds between two reports, and at most after failures; and that a server may take.
    EVERY_S, PATIENCE_S, LIMIT_S = 1.0, 5.0, 5.0

    def __init__(self, place: Place) -> None:
        self._url = urlsplit(place.server)
        self._headers = {"Authorization": f"Bearer {place.token}", "Content-Type": "application/json"}
        self._place = place
        self._connection: HTTPConnection | None = None
        self._next = 0.0
        self._wait_s = self.EVERY_S
        self.dropped = 0
        self.news = News(place.world)
        self._told: Report | None = None

    def exchange(self, report: Report, hurry: bool) -> News:
        """Posts the report when one is due, or at once where its flags or generation are new."""
        is_new = self._told is not None and self._told[:2] != report[:2] and self._wait_s == self.EVERY_S
        if not (is_new or hurry or time.monotonic() >= self._next):
            return self.news
        try:
            answer = self._post(report)
            self._wait_s = self.EVERY_S
            self._told = report
            self.news = _answer(answer, self.news)
        except (OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError):
            self._forget()
            self.dropped += 1
            self._wait_s = min(2 * self._wait_s, self.PATIENCE_S)
        self._next = time.monotonic() + self._wait_s
        return self.news

    def _post(self, report: Report) -> Any:
        place = self._place
        body = {
            "job": place.job,
            "generation": report.generation or place.generation,
            "rank": self._rank(report.generation),
            "flags": report.flags,
            # One that has not begun does not know yet how far the checkpoint is.
            "step": report.step if report.generation else None,
            "step_s": report.step_s,
            "saves": report.saves,
            "saved_step": report.saved_step,
        }
        if self._connection is None:
            kind = HTTPSConnection if self._url.scheme == "https" else HTTPConnection
            self._connection = kind(self._url.hostname or "127.0.0.1", self._url.port, timeout=self.LIMIT_S)
        path = self._url.path.rstrip("/") + "/api/v1/worker/report"
        self._connection.request("POST", path, json.dumps(body), self._headers)
        response = self._connection.getresponse()
        text = response.read()
        if response.status >= 300:
            raise HTTPException(f"status {response.status}")
        answer = json.loads(text) if text.strip() else {}
        if not isinstance(answer, dict):
            raise ValueError("the answer is no object")
        return answer

    def _rank(self, generation: int) -> int:
        world = self.news.world
        if world is not None and world.generation == generation:
            rank = world.rank(self._place.worker)
            if rank is not None:
                return rank
        return self._place.rank

    def _forget(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _answer(told: Any, before: News) -> News:
    """What a server answers; what it leaves out stays as it was."""
    world, lease = told.get("world"), told.get("lease")
    return News(
        before.world if world is None else parse_world(world), before.lease if lease is None else parse_lease(lease)
    )
