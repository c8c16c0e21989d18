"""Policies, beside the loop: each decision in a thread of its own, with a time limit."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

import msgspec

from levada.core.commands import Decide
from levada.core.events import Decided, DecideFailed
from levada.engine import answer


async def think(question: Decide, limit_s: float) -> Decided | DecideFailed:
    """The policy's answer to a detached question; one that takes too long has failed, and is left to itself.

    A thread that hangs cannot be ended; it is a daemon, so that it does not keep the server from ending.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Decided | DecideFailed] = loop.create_future()

    def tell(result: Decided | DecideFailed) -> None:
        if not done.done():
            done.set_result(result)

    def work() -> None:
        began = time.monotonic()
        result = answer(question, 0.0)
        if isinstance(result, Decided):
            result = msgspec.structs.replace(result, took_s=time.monotonic() - began)
        with contextlib.suppress(RuntimeError):  # the loop may be over by now
            loop.call_soon_threadsafe(tell, result)

    threading.Thread(target=work, name=f"decision {question.revision}", daemon=True).start()
    try:
        return await asyncio.wait_for(done, limit_s)
    except TimeoutError:
        why = f"it did not decide within {limit_s:g} s"
        return DecideFailed(at=0.0, revision=question.revision, why=why)
