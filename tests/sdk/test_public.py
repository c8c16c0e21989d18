"""Public names of the package."""

import levada.sdk


def test_public_names_exist_and_are_sorted() -> None:
    assert levada.sdk.__all__ == sorted(levada.sdk.__all__)
    for name in levada.sdk.__all__:
        assert getattr(levada.sdk, name).__doc__
