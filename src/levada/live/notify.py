"""Tells addresses that a job has ended, or that there is something to be warned of.

What is told stands in the history before, so that a server that was killed goes on where it was: an address hears of
everything at least once, with one exception. While ten thousand POSTs wait, what comes is not told at all; the server's
log has it. Nobody waits for an address: each POST is made in a thread that ends with the process.
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

from levada.backends.protocol import Note
from levada.errors import Unavailable
from levada.live import views
from levada.live.loop import Loop
from levada.live.store import HistoryLine, StoreTrouble

_log = logging.getLogger(__name__)

_SETTING = "notified"
_OVER = ("Succeeded", "Failed", "Cancelled")
#: A POST may take so long; it is tried again after these pauses.
_LIMIT_S = 10.0
_PAUSES_S = (1.0, 5.0, 30.0)
#: So many at a time to one host, so that a dead one holds up no other, and so many altogether that are not done yet.
_PER_HOST, _MOST = 4, 10_000
#: How far it is is kept after so many lines of history that concern nobody.
_KEEP_LINES = 1000


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Who moved has to be told so in the job: a POST that is passed on may end anywhere."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        return None


def post(address: str, message: Mapping[str, Any], key: str, limit_s: float = _LIMIT_S) -> str:
    """Posts *message* as JSON; empty when it was taken, else why not. The same *key* means the same message."""
    if not re.match(r"https?://", address):
        return "it is no http or https address"
    headers = {"Content-Type": "application/json", "User-Agent": "levada", "Idempotency-Key": key}
    try:
        request = urllib.request.Request(address, json.dumps(message).encode(), headers, method="POST")
        with urllib.request.build_opener(_NoRedirects()).open(request, timeout=limit_s):
            return ""
    except urllib.error.HTTPError as refused:
        with refused:
            return f"it answered {refused.code}"
    except (OSError, http.client.HTTPException, ValueError) as broken:
        why = broken.reason if isinstance(broken, urllib.error.URLError) else broken
        return str(why) or type(why).__name__


class Notifier:
    """Follows the history of a running server and tells addresses what they want to know."""

    def __init__(self, loop: Loop, pauses_s: tuple[float, ...] = _PAUSES_S) -> None:
        self._loop, self._pauses_s = loop, pauses_s
        self._rooms: dict[str, asyncio.Semaphore] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        #: Lines that some address has not heard of yet, and the last line that was looked at.
        self._open: dict[int, int] = {}
        self._seen = 0

    async def run(self) -> None:
        """Until it is cancelled."""
        kept = await self._loop.store.setting(_SETTING)
        self._seen = (
            int(kept) if kept is not None and kept.isascii() and kept.isdecimal() else self._loop.broadcast.last
        )
        try:
            await self._keep()
            async for line in self._loop.broadcast.watch(self._seen):
                self._take(line)
                if line.id % _KEEP_LINES == 0:
                    await self._keep()
        finally:
            for task in self._tasks:
                task.cancel()

    def _take(self, line: HistoryLine) -> None:
        self._seen = line.id
        record = None if line.job is None else self._loop.records.by_id.get(line.job)
        message = message_of(line)
        if record is None or message is None:
            return
        for address in dict.fromkeys(record.about.notify):
            if len(self._tasks) >= _MOST:
                _log.warning("%s is not told of line %d: too many addresses wait", host_of(address), line.id)
                continue
            self._open[line.id] = self._open.get(line.id, 0) + 1
            task = asyncio.create_task(self._tell(line, address, message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _tell(self, line: HistoryLine, address: str, message: Mapping[str, Any]) -> None:
        room = self._rooms.setdefault(host_of(address), asyncio.Semaphore(_PER_HOST))
        why = ""
        for pause_s in (*self._pauses_s, None):
            async with room:
                why = await _in_thread(address, message, str(line.id))
            if not why or pause_s is None:
                break
            await asyncio.sleep(pause_s)
        await self._say(line, address, why)
        self._open[line.id] -= 1
        if not self._open[line.id]:
            del self._open[line.id]
            await self._keep()

    async def _say(self, line: HistoryLine, address: str, why: str) -> None:
        """The history has the outcome; of the address the host alone, for the rest may be a secret."""
        text = f"{host_of(address)} could not be told: {why}" if why else f"{host_of(address)} was told."
        data = {"line": line.id, "told": not why}
        with contextlib.suppress(Unavailable):
            await self._loop.tell(notes=(Note(job=line.job or "", type="notify", text=text, data=data),))

    async def _keep(self) -> None:
        """How far all addresses have heard everything."""
        far = min(self._open) - 1 if self._open else self._seen
        try:
            await self._loop.store.set_setting(_SETTING, str(far), self._loop.lease)
        except StoreTrouble as trouble:
            _log.warning("what addresses were told could not be kept: %s", trouble)


def message_of(line: HistoryLine) -> dict[str, Any] | None:
    """What an address is told of a line of history; None where it is none of its business."""
    if line.type == "phase" and line.data.get("phase") in _OVER:
        what = {"phase": line.data["phase"]}
    elif line.type == "warning":
        what = {"warning": line.data.get("warning", "warning")}
    else:
        return None
    return {"job": line.job, **what, "text": line.text, "time": views.moment(line.at)}


def host_of(address: str) -> str:
    """Scheme and host of an address, without names and secrets."""
    scheme, _, rest = address.partition("://")
    return f"{scheme}://{re.split('[/?#]', rest)[0].rpartition('@')[2]}"


async def _in_thread(address: str, message: Mapping[str, Any], key: str) -> str:
    """`post` in a thread of its own, which does not keep the server from ending."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[str] = loop.create_future()

    def tell(why: str) -> None:
        if not done.done():
            done.set_result(why)

    def work() -> None:
        why = post(address, message, key)
        with contextlib.suppress(RuntimeError):  # the loop may be over by now
            loop.call_soon_threadsafe(tell, why)

    threading.Thread(target=work, name="notify", daemon=True).start()
    return await done
