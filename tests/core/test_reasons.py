"""Every reason can be told."""

from __future__ import annotations

import pytest

from levada.core.reasons import SENTENCES, Code, reason


@pytest.mark.parametrize("code", Code.numbers(), ids=Code.name)
def test_every_code_has_a_sentence_that_formats(code: int) -> None:
    told = reason(code, 4711)
    assert told.text == SENTENCES[code].replace("{evidence}", "4711").replace("{workers}", "4711 workers")
    assert told.text[0].isupper()
    assert told.text.endswith(".")
    assert "{" not in told.text
    assert Code.names()[told.code.replace("-", "_").upper()] == code


def test_no_two_codes_say_the_same() -> None:
    assert len(set(SENTENCES.values())) == len(Code.numbers())


def test_a_number_that_is_nothing_is_not_told() -> None:
    assert reason(Code.TOO_LARGE, 0).text == "No state of this cluster could hold its minimum."
    assert "0" not in reason(Code.FRAGMENTED, 0).text
    assert reason(Code.RESIZING, 1).text == "Changing to 1 worker without a restart."
