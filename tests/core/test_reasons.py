"""Every reason can be told."""

from __future__ import annotations

import pytest

from levada.core.reasons import SENTENCES, Code, reason


@pytest.mark.parametrize("code", list(Code), ids=lambda code: code.name)
def test_every_code_has_a_sentence_that_formats(code: Code) -> None:
    told = reason(int(code), 4711)
    assert told.text == SENTENCES[code].replace("{evidence}", "4711")
    assert told.text[0].isupper()
    assert told.text.endswith(".")
    assert "{" not in told.text
    assert Code[told.code.replace("-", "_").upper()] is code


def test_no_two_codes_say_the_same() -> None:
    assert len(set(SENTENCES.values())) == len(Code)
