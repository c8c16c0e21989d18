"""Requests at the moment of a job's end report that end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from levada.backends.protocol import Report
from levada.core import events as ev
from levada.errors import Refused
from tests.live.fake_backend import FakeMachines
from tests.live.live_server import document, live_server


@pytest.mark.parametrize("act", ["cancel", "suspend", "resume"])
async def test_a_request_at_the_moment_of_the_job_end_reports_the_end(tmp_path: Path, act: str) -> None:
    async with live_server(f"sqlite:///{tmp_path}/levada.db", FakeMachines()) as up:
        (view,) = await up.service.submissions.submit([document()], user="ann", key=None)
        job = view["id"]
        await up.until(lambda: up.phase(job) == "Running")
        number = np.array([up.backend.machines.runs.pop(job).number])
        up.live.loop.observe(Report(events=(ev.JobsFinished(at=0.0, number=number),)))
        with pytest.raises(Refused, match=r"has ended already \(Succeeded\)"):
            await getattr(up.service.jobs, act)(job, **({"force": True} if act == "suspend" else {}))
        assert up.phase(job) == "Succeeded"
