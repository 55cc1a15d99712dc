"""gnl_django.studio.filters: what a query string may ask for, and that nothing else has effect."""

import pytest
from django.http import QueryDict

from gnl_django.models import Job
from gnl_django.queue.options import dedup
from gnl_django.studio import filters
from gnl_django.studio.filters import Filters
from tests.studio.rows import make


def read(text: str) -> Filters:
    return filters.read(QueryDict(text))


def found(text: str) -> set[int]:
    return set(read(text).apply(Job.objects.all()).values_list("pk", flat=True))


def test_what_is_offered_is_read() -> None:
    text = "state=dead&kind=mail.send&queue=default&org=Acme+%26+Co&q=+42+&p=a~x&_popup=1"

    assert read(text) == Filters("dead", "mail.send", "default", "Acme & Co", "42")


def test_an_empty_value_is_no_condition() -> None:
    assert read("state=&kind=&queue=&org=+&q=") == Filters()


@pytest.mark.row("studio", "C65")
@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("state=lost", ("state",)),
        ("kind=%00", ("kind",)),
        ("kind=a+b", ("kind",)),
        ("queue=' OR 1=1 --", ("queue",)),
        ("org=a%00b", ("org",)),
        ("org=" + "x" * 129, ("org",)),
        ("org=%E2%80%AEevil", ("org",)),
        ("q=" + "x" * 301, ("q",)),
        ("org__startswith=a&payload__contains=b", ("org__startswith", "payload__contains")),
        ("id=7&pk__in=1", ("id", "pk__in")),
    ],
)
def test_anything_else_is_dropped_and_named(text: str, names: tuple[str, ...]) -> None:
    assert read(text) == Filters(ignored=names)


def test_only_a_few_short_names_of_what_was_dropped_are_kept() -> None:
    dropped = read("&".join(f"{'n' * 200}{at}=1" for at in range(500))).ignored

    assert len(dropped) == 10
    assert {len(name) for name in dropped} == {64}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", 42),
        ("042", 42),
        (str(2**63 - 1), 2**63 - 1),
        ("0", None),
        (str(2**63), None),
        ("9" * 5_000, None),
        ("-1", None),
        ("+1", None),
        ("4_2", None),
        ("٣", None),
        ("²", None),
        ("", None),
        ("1 ", None),
    ],
)
def test_an_id_is_digits_within_the_columns_range(text: str, number: int | None) -> None:
    assert filters.job_id(text) == number


@pytest.mark.django_db
def test_conditions_are_exact_and_combine() -> None:
    wanted = make("dead", kind="mail.send", queue="mail", org="acme").pk
    make("dead", kind="mail.send", queue="mail", org="ACME")
    make("dead", kind="mail.send2", queue="mail", org="acme")
    make("ready", kind="mail.send", queue="mail", org="acme")

    assert found("state=dead&kind=mail.send&queue=mail&org=acme") == {wanted}


@pytest.mark.row("studio", "C64")
@pytest.mark.django_db
def test_the_search_finds_an_id_and_a_key_of_the_chosen_organization() -> None:
    nobody = make(key="order-7", dedup=dedup("", "order-7"))
    acme = make(key="order-7", dedup=dedup("acme", "order-7"), org="acme")
    digits = make(key=str(nobody.pk), dedup=dedup("", str(nobody.pk)))

    assert found("q=order-7") == {nobody.pk}
    assert found("q=order-7&org=acme") == {acme.pk}
    assert found("q=order-7&org=globex") == set()
    assert found("q=order") == set()
    assert found(f"q={acme.pk}") == {acme.pk}
    assert found(f"q={nobody.pk}") == {nobody.pk, digits.pk}
    assert found(f"q={acme.pk}&state=dead") == set()


@pytest.mark.row("security", "D8")
@pytest.mark.django_db
def test_the_search_never_looks_into_payloads() -> None:
    make(payload={"secret": "a-marker"}, kind="a-marker")

    assert found("q=a-marker") == set()


def test_conditions_go_back_into_a_query_string_and_into_words() -> None:
    asked = read("state=dead&kind=mail.send&org=A%26B&q=42&bad=1")

    assert asked.query() == "?state=dead&kind=mail.send&org=A%26B&q=42"
    assert asked.words() == "state dead, kind mail.send, organization A&B, id or key “42”"
    assert asked.in_state("ready").query() == "?state=ready&kind=mail.send&org=A%26B&q=42"
    assert (Filters().query(), Filters().words()) == ("?", "")
