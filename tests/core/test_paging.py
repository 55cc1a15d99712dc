"""Cursors come back as they were given, and nothing else passes for one."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnl_django.core import paging

values = st.lists(
    st.one_of(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
        st.integers(-(2**63), 2**63 - 1),
    ),
    max_size=5,
)


def forged(content: Any) -> str:
    """Return a cursor of any content, as somebody could make it by hand."""
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


@given(scope=st.text(st.characters(exclude_categories=["Cs"]), max_size=20), given_values=values)
def test_a_cursor_brings_its_values_back(scope: str, given_values: list[Any]) -> None:
    cursor = paging.encode(scope, given_values)
    assert cursor.isascii()
    assert not set(cursor) & set("+/=&?")
    assert paging.decode(scope, cursor, [type(v) for v in given_values]) == given_values


def test_null_stands_for_any_form() -> None:
    cursor = paging.encode("jobs", [None, 3])
    assert paging.decode("jobs", cursor, [str, int]) == [None, 3]


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "ä",
        "!!!!",
        "a" * 2_001,
        paging.encode("other", ["a", 1]),
        paging.encode("jobs", ["a"]),
        paging.encode("jobs", ["a", 1, 2]),
        paging.encode("jobs", [1, "a"]),
        paging.encode("jobs", ["a", "1"]),
        paging.encode("jobs", ["a", 1])[:-3],
        forged({"scope": "jobs"}),
        forged(["jobs", "a", True]),
        forged(["jobs", "a", 1.0]),
        forged(["jobs", "a", 2**63]),
        forged(["jobs", "a", -(2**63) - 1]),
        forged(["jobs", ["a"], 1]),
        forged("jobs"),
        base64.urlsafe_b64encode(b"\xff\xfe").decode(),
        base64.urlsafe_b64encode(b"[" * 1_400).decode(),
    ],
)
def test_anything_else_is_refused(cursor: str) -> None:
    with pytest.raises(ValueError, match="cursor: malformed, or made for another list"):
        paging.decode("jobs", cursor, [str, int])


@given(st.text(max_size=40))
def test_no_text_at_all_ends_in_another_error(cursor: str) -> None:
    with pytest.raises(ValueError, match="cursor: malformed"):
        paging.decode("jobs", cursor, [str, int])
