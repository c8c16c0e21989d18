"""What users ask of a job in the moment in which it ends: they are told the truth."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from levada.backends.protocol import Report
from levada.core import events as ev
from levada.errors import Refused
from tests.live.house import document, house
from tests.live.rehearsal import Stage


@pytest.mark.parametrize("act", ["cancel", "suspend", "resume"])
def test_who_asks_in_the_moment_of_its_end_hears_that_it_has_ended(tmp_path: Path, act: str) -> None:
    async def story() -> None:
        async with house(f"sqlite:///{tmp_path}/levada.db", Stage()) as up:
            (view,) = await up.service.submit([document()], user="ann", key=None)
            job = view["id"]
            await up.until(lambda: up.phase(job) == "Running")
            number = np.array([up.backend.stage.runs.pop(job).number])
            up.live.loop.hear(Report(events=(ev.JobsFinished(at=0.0, number=number),)))
            with pytest.raises(Refused, match=r"has ended already \(Succeeded\)"):
                await getattr(up.service, act)(job, **({"force": True} if act == "suspend" else {}))
            assert up.phase(job) == "Succeeded"

    asyncio.run(story())
