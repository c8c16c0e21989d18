"""Texts of reasons."""

from __future__ import annotations

import pytest

from levada.core.reasons import SENTENCES, Code, reason, with_phase

_PHASE_SAYS_IT = {Code.RUNS, Code.FINISHED, Code.CANCELLED}


@pytest.mark.parametrize("code", Code.numbers(), ids=Code.name)
def test_every_code_has_a_sentence_that_formats(code: int) -> None:
    formatted = reason(code, 4711)
    assert formatted.text == SENTENCES[code].format(evidence=4711, workers="4711 workers", others="4711 other jobs")
    assert (
        formatted.text == "" if code in _PHASE_SAYS_IT else formatted.text[0].isupper() and formatted.text.endswith(".")
    )
    assert not formatted.text.startswith("It ")
    assert "{" not in formatted.text
    assert Code.names()[formatted.code.replace("-", "_").upper()] == code


def test_every_code_has_its_own_sentence() -> None:
    assert len(set(SENTENCES.values())) == len(Code.numbers()) - len(_PHASE_SAYS_IT) + 1


def test_one_is_singular() -> None:
    assert reason(Code.DEPENDENCY, 1).text == "Waiting for 1 other job to succeed."
    assert reason(Code.RESIZING, 1).text == "Resizing to 1 worker without a restart."


def test_zero_numbers_are_omitted() -> None:
    assert reason(Code.TOO_LARGE, 0).text == "Can never start: the cluster cannot hold its minimum."
    assert "0" not in reason(Code.FRAGMENTED, 0).text
    assert reason(Code.RESIZING, 1).text == "Resizing to 1 worker without a restart."


def test_a_reason_does_not_repeat_the_phase() -> None:
    assert with_phase("Running", "") == "Running"
    assert with_phase("Resizing", "Resizing from 2 to 4 workers.") == "Resizing from 2 to 4 workers."
    assert with_phase("Failed", "Failed: exit code 1.") == "Failed: exit code 1."
    assert with_phase("Pending", "Queued.") == "Pending: Queued."
