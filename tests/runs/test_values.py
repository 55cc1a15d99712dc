"""Names and values are checked before anything is written."""

import pytest

from gnl_django import InvalidPayload
from gnl_django.runs import values


@pytest.mark.parametrize("text", ["a", "a b", "ä", "😀" * 5, "x:y/z"])
def test_a_readable_text_is_returned_as_it_is(text: str) -> None:
    assert values.check_text("key", text, 5) is text


@pytest.mark.parametrize("text", ["", " ", "a ", " a", "123456", "a\t", "\u2028", "\x00"])
def test_another_text_is_named_in_the_error_and_cut(text: str) -> None:
    with pytest.raises(ValueError, match=r"^key: .* is not 1 to 5 printable characters"):
        values.check_text("key", text, 5)
    with pytest.raises(ValueError, match=r"^key:") as caught:
        values.check_text("key", "x" * 10_000, 5)
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize("value", [None, 1, b"a", ["a"]])
def test_what_is_no_text_is_a_type_error(value: object) -> None:
    for check in (values.check_run_id, values.check_step_name):
        with pytest.raises(TypeError, match=f"must be text, not {type(value).__name__}"):
            check(value)


@pytest.mark.parametrize("prefix", ["job:", "sched:", "wf:", "evt:"])
def test_reserved_run_ids_are_refused_wherever_they_go_on(prefix: str) -> None:
    for run_id in (prefix, f"{prefix}1", f"{prefix}a b"):
        with pytest.raises(ValueError, match="belongs to its own handler"):
            values.check_run_id(run_id)
    for run_id in (prefix.upper(), f"a{prefix}", prefix[:-1]):
        assert values.check_run_id(run_id) == run_id


def test_step_names_have_no_number_sign() -> None:
    with pytest.raises(ValueError, match="numbers repeated names"):
        values.check_step_name("a#2")


def test_a_value_is_canonical_and_has_a_digest_of_its_own() -> None:
    text = values.encode("run:r", {"b": 1, "a": (None,)})
    assert text == '{"a":[null],"b":1}'
    assert values.decode(text) == {"a": [None], "b": 1}
    assert values.decode(None) is None
    assert len(values.digest(text)) == 64
    assert values.digest(text) != values.digest(values.encode("run:r", {"b": 1}))
    with pytest.raises(InvalidPayload, match="larger than 1048576 bytes"):
        values.encode("run:r", "x" * values.VALUE_MAX_BYTES)
