"""What the package offers."""

import levada.sdk


def test_what_is_offered_is_there_and_in_order() -> None:
    assert levada.sdk.__all__ == sorted(levada.sdk.__all__)
    for name in levada.sdk.__all__:
        assert getattr(levada.sdk, name).__doc__
