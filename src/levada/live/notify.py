"""Webhooks: POST job ends and warnings to the addresses in `spec.notify`.

Messages come from the stored history, so that a restarted server continues where it stopped: delivery is at least once,
with one exception. While 10,000 POSTs wait, new messages are dropped and logged. Each POST runs in a daemon thread, so
that a slow address delays neither the server nor its exit.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import logging
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from email.message import Message
from typing import IO, Any

from levada.api import ENDED
from levada.backends.protocol import Note
from levada.errors import Unavailable
from levada.live import views
from levada.live.loop import Loop
from levada.live.store import HistoryLine, StoreError

_log = logging.getLogger(__name__)

_SETTING = "notified"
#: Timeout of a POST, and pauses before its retries.
_LIMIT_S = 10.0
_PAUSES_S = (1.0, 5.0, 30.0)
#: Concurrent POSTs per host, so that a dead host does not block others; and waiting POSTs in total.
_PER_HOST, _MAX_WAITING = 4, 10_000
#: The position is stored at least every this many history lines.
_STORE_LINES = 1000


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirects: a forwarded POST could reach any host. The job must name the new address."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        return None


def post(address: str, message: Mapping[str, Any], key: str, limit_s: float = _LIMIT_S) -> str:
    """POST *message* as JSON; returns "" on success, else the error. *key*: idempotency key of the message."""
    if not re.match(r"https?://", address):
        return "not an http or https address"
    headers = {"Content-Type": "application/json", "User-Agent": "levada", "Idempotency-Key": key}
    try:
        request = urllib.request.Request(address, json.dumps(message).encode(), headers, method="POST")
        with urllib.request.build_opener(_NoRedirects()).open(request, timeout=limit_s):
            return ""
    except urllib.error.HTTPError as error:
        with error:
            return f"it answered {error.code}"
    except (OSError, http.client.HTTPException, ValueError) as error:
        why = error.reason if isinstance(error, urllib.error.URLError) else error
        return str(why) or type(why).__name__


class Notifier:
    """Follows the history of a server and posts messages to the addresses of each job."""

    def __init__(self, loop: Loop, pauses_s: tuple[float, ...] = _PAUSES_S) -> None:
        self._loop, self._pauses_s = loop, pauses_s
        self._host_limits: dict[str, asyncio.Semaphore] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        #: Number of undelivered messages by history line.
        self._undelivered: dict[int, int] = {}
        #: The last line that was read. On a new store, lines that are written while `run` starts count as unread.
        self._seen = loop.broadcast.last

    async def run(self) -> None:
        """Follow the history until cancelled."""
        stored = await self._loop.store.setting(_SETTING)
        if stored is not None and stored.isascii() and stored.isdecimal():
            self._seen = int(stored)
        try:
            await self._store_position()
            async for line in self._loop.broadcast.watch(self._seen):
                self._notify(line)
                if line.id % _STORE_LINES == 0:
                    await self._store_position()
        finally:
            for task in self._tasks:
                task.cancel()

    def _notify(self, line: HistoryLine) -> None:
        self._seen = line.id
        record = None if line.job is None else self._loop.records.by_id.get(line.job)
        message = message_of(line)
        if record is None or message is None:
            return
        for address in dict.fromkeys(record.about.notify):
            if len(self._tasks) >= _MAX_WAITING:
                _log.warning("dropping notification of line %d to %s: too many are waiting", line.id, host_of(address))
                continue
            self._undelivered[line.id] = self._undelivered.get(line.id, 0) + 1
            task = asyncio.create_task(self._deliver(line, address, message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _deliver(self, line: HistoryLine, address: str, message: Mapping[str, Any]) -> None:
        limit = self._host_limits.setdefault(host_of(address), asyncio.Semaphore(_PER_HOST))
        why = ""
        for pause_s in (*self._pauses_s, None):
            async with limit:
                why = await _in_thread(address, message, str(line.id))
            if not why or pause_s is None:
                break
            await asyncio.sleep(pause_s)
        await self._record_outcome(line, address, why)
        self._undelivered[line.id] -= 1
        if not self._undelivered[line.id]:
            del self._undelivered[line.id]
            await self._store_position()

    async def _record_outcome(self, line: HistoryLine, address: str, why: str) -> None:
        """Write the outcome to the history, with the host only: the rest of the address may be secret."""
        text = f"Could not notify {host_of(address)}: {why}" if why else f"Notified {host_of(address)}."
        data = {"line": line.id, "told": not why}
        with contextlib.suppress(Unavailable):
            await self._loop.apply(notes=(Note(job=line.job or "", type="notify", text=text, data=data),))

    async def _store_position(self) -> None:
        """Store the last line up to which all messages are delivered."""
        position = min(self._undelivered) - 1 if self._undelivered else self._seen
        try:
            await self._loop.store.set_setting(_SETTING, str(position), self._loop.lease)
        except StoreError as error:
            _log.warning("cannot store notification position: %s", error)


def message_of(line: HistoryLine) -> dict[str, Any] | None:
    """Return the message for a history line; None if it is neither an end nor a warning."""
    if line.type == "phase" and line.data.get("phase") in ENDED:
        cause = {"phase": line.data["phase"]}
    elif line.type == "warning":
        cause = {"warning": line.data.get("warning", "warning")}
    else:
        return None
    return {"job": line.job, **cause, "text": line.text, "time": views.moment(line.at)}


def host_of(address: str) -> str:
    """Return scheme and host of an address, without credentials."""
    scheme, _, rest = address.partition("://")
    return f"{scheme}://{re.split('[/?#]', rest)[0].rpartition('@')[2]}"


async def _in_thread(address: str, message: Mapping[str, Any], key: str) -> str:
    """Run `post` in a daemon thread, which does not keep the server from exiting."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[str] = loop.create_future()

    def set_result(why: str) -> None:
        if not done.done():
            done.set_result(why)

    def work() -> None:
        why = post(address, message, key)
        with contextlib.suppress(RuntimeError):  # the event loop may be closed by now
            loop.call_soon_threadsafe(set_result, why)

    threading.Thread(target=work, name="notify", daemon=True).start()
    return await done
