"""Canonical JSON: one text for one value, a path for each fault, no cost for attacks."""

import json
import math
import time
import tracemalloc
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnl_django.core import payloads
from gnl_django.errors import InvalidPayload
from gnl_django.models import Job

LARGE = 2**40
TIMES: dict[str, Any] = dict.fromkeys(("run_at", "enqueued_at"), datetime(2031, 5, 7, tzinfo=UTC))

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


def encode(value: Any, max_bytes: int = LARGE) -> str:
    return payloads.encode("k", value, max_bytes=max_bytes)


def faults(value: Any, max_bytes: int = LARGE) -> list[tuple[str, str]]:
    with pytest.raises(InvalidPayload) as error:
        encode(value, max_bytes)
    assert error.value.kind == "k"
    return [(issue.path, issue.message) for issue in error.value.issues]


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@given(values)
def test_a_text_reads_as_the_value_it_was_made_of(value: Any) -> None:
    text = encode(value)
    assert json.loads(text) == value
    assert repr(json.loads(text)) == repr(json.loads(json.dumps(value, sort_keys=True)))
    assert encode(json.loads(text)) == text


@given(st.dictionaries(texts, values, min_size=2, max_size=6))
def test_the_order_of_keys_plays_no_part(value: dict[str, Any]) -> None:
    turned = dict(reversed(value.items()))
    assert encode(turned) == encode(value)


@given(values)
def test_a_text_is_as_long_as_the_bound_that_just_admits_it(value: Any) -> None:
    text = encode(value)
    size = len(text.encode())
    assert encode(value, size) == text
    with pytest.raises(InvalidPayload):
        encode(value, size - 1)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [1.0, True, None]}, '{"a":[1.0,true,null],"b":1}'),
        ("ü😀\u2028", '"ü😀\u2028"'),
        ('"\\\n', '"\\"\\\\\\n"'),
        ({"ä": 1, "z": 2, "a": 3, "": 4}, '{"":4,"a":3,"z":2,"ä":1}'),
        ((1, (2,)), "[1,[2]]"),
        (IntEnum("Colour", {"RED": 5})(5), "5"),
        (-0.0, "-0.0"),
        (1e22, "1e+22"),
    ],
)
def test_the_form_is_sorted_compact_and_unescaped(value: Any, text: str) -> None:
    assert encode(value) == text


@pytest.mark.parametrize(
    ("value", "path", "word"),
    [
        (math.nan, "/", "finite"),
        ([0, math.inf], "/1", "finite"),
        ({"a": {"b": [0, -math.inf]}}, "/a/b/1", "finite"),
        ("\0", "/", "NUL"),
        ({"a": "x\0"}, "/a", "NUL"),
        ({"x\0": 1}, "/x?", "NUL"),
        ("\ud800", "/", "surrogate"),
        ({"\udc00": 1}, "/?", "surrogate"),
        (2**63, "/", "64 bits"),
        (-(2**63), "/", "64 bits"),
        ({"a": {3: 4}}, "/a/3", "int"),
        ({None: 4}, "/None", "NoneType"),
        (b"x", "/", "bytes is not JSON"),
        ({1}, "/", "set is not JSON"),
        (object(), "/", "object is not JSON"),
        ({"a/b": {"c~d": b""}}, "/a~1b/c~0d", "bytes"),
        (nested(33), "/0" * 32, "32 levels"),
        ("x" * 11, "/", "larger than 10 bytes"),
    ],
)
def test_a_fault_has_a_path_and_a_word(value: Any, path: str, word: str) -> None:
    (found,) = faults(value, 10 if word.startswith("larger") else LARGE)
    assert found[0] == path
    assert word in found[1]


def test_all_faults_are_told_but_no_more_than_twenty() -> None:
    found = faults([math.nan] * 1_000)
    assert [path for path, _ in found] == [*(f"/{at}" for at in range(20)), "/"]
    assert found[-1][1] == "and more"


def test_a_path_holds_nothing_that_would_upset_a_log() -> None:
    ((path, _),) = faults({"a\n\x1b[31m" + "k" * 100: b""})
    assert path.isprintable()
    assert len(path) < 70


def test_depth_32_is_stored_and_33_is_not() -> None:
    assert encode(nested(32)) == "[" * 32 + "1" + "]" * 32
    assert encode([{"a": nested(30)}])
    assert faults([{"a": nested(31)}])


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: "x" * 100_000_000, id="100 MB of text"),
        pytest.param(lambda: ["x" * 1_000_000] * 100, id="100 MB in parts"),
        pytest.param(lambda: nested(100_000), id="depth 100,000"),
    ],
)
def test_a_hostile_value_is_refused_quickly_and_without_a_copy(make: Any) -> None:
    value = make()
    tracemalloc.start()
    began = time.thread_time()
    found = faults(value, 1_048_576)
    took = time.thread_time() - began
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found) == 1
    assert took < 5  # of work, however busy the machine is
    assert peak < 5_000_000


def test_parts_that_are_shared_are_not_walked_beyond_the_bound() -> None:
    value: Any = [1]
    for _ in range(21):
        value = [value, value]  # two million numbers that take no memory
    began = time.thread_time()
    assert faults(value, 10_000)
    assert time.thread_time() - began < 5


@given(st.text(max_size=30), st.integers(0, 60))
def test_a_cleaned_text_fits_and_can_be_stored_anywhere(text: str, most: int) -> None:
    cleaned = payloads.clean_text(text, most)
    raw = cleaned.encode()
    assert len(raw) <= most
    assert "\0" not in cleaned
    if "\0" not in text and not any(0xD800 <= ord(c) <= 0xDFFF for c in text):
        assert text.startswith(cleaned)
        # Cut as late as a border of characters allows.
        assert cleaned == text or len(text[: len(cleaned) + 1].encode()) > most


def test_a_cleaned_text_shows_where_something_was_replaced() -> None:
    assert payloads.clean_text("a\0b\ud800c", 100) == "a\ufffdb?c"


@pytest.mark.django_db
@given(value=values.filter(lambda value: value is not None))
def test_a_json_column_gives_back_what_it_was_given(value: Any) -> None:
    Job.objects.create(kind="k", state="ready", payload=value, **TIMES)
    found = Job.objects.latest("id")
    assert found.payload == value
    assert repr(found.payload) == repr(json.loads(payloads.dump(value)))
    assert Job.objects.filter(payload=value).exists()
    found.delete()


@pytest.mark.django_db
def test_none_in_a_json_column_is_null() -> None:
    Job.objects.create(kind="k", state="ready", payload=None, **TIMES)
    assert Job.objects.get(payload__isnull=True).payload is None


def test_a_json_column_is_serialized_as_its_text() -> None:
    field = Job._meta.get_field("payload")
    assert field.value_to_string(Job(payload={"b": 1, "a": 2})) == '{"a":2,"b":1}'
    assert field.to_python([1]) == [1]
