"""The tests' own helpers."""

import pytest

from tests.support import wait_until


def test_a_wait_returns_the_first_true_value() -> None:
    values = iter([0, None, 7, 8])
    assert wait_until(lambda: next(values), timeout=5) == 7


@pytest.mark.parametrize("describe", ["rows: none", lambda: "rows: none"])
def test_a_wait_in_vain_fails_and_shows_how_things_stand(describe: object) -> None:
    def never() -> list[int]:
        return []

    with pytest.raises(AssertionError, match=r"still \[\] after 0\.05 s: .*never.*\nrows: none"):
        wait_until(never, timeout=0.05, describe=describe)  # type: ignore[arg-type]
