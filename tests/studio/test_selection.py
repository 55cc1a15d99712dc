"""gnl_django.studio.selection: an act on many touches what was counted, and nothing later."""

from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError
from django.db import connection
from django.http import QueryDict
from django.test.utils import CaptureQueriesContext

from gnl_django.core import clock
from gnl_django.models import Job
from gnl_django.studio import selection
from gnl_django.studio.filters import Filters
from gnl_django.studio.ops import OPS
from tests.studio.rows import EPOCH, make, new_job, store

DEAD = Filters(state="dead", kind="mail.send")


@pytest.mark.row("security", "P6")
@pytest.mark.row("studio", "C38")
@pytest.mark.django_db
def test_jobs_that_come_or_die_after_the_page_are_not_meant() -> None:
    meant = [make("dead").pk for _ in range(3)]
    make("dead", kind="report.build")
    dies_later = make("ready")
    with clock.override(EPOCH + timedelta(hours=1)):
        chosen = selection.now_shown(DEAD, "default")
    make("dead")
    Job.objects.filter(pk=dies_later.pk).update(
        state="dead", finished_at=EPOCH + timedelta(hours=2)
    )
    revived = Job.objects.filter(pk=meant.pop())
    revived.update(finished_at=EPOCH + timedelta(hours=3))  # it ran again and died again

    assert chosen.ids(Job.objects.all(), 100) == (meant, False)
    assert chosen.count(Job.objects.all()) == "2"


@pytest.mark.django_db
@pytest.mark.parametrize("state", sorted(OPS["cancel"].listed | OPS["retry"].listed))
def test_every_state_that_may_be_acted_on_at_once_is_listed_by_its_index(state: str) -> None:
    ids = store([new_job(state) for _ in range(5)])
    chosen = selection.now_shown(Filters(state=state), "default")

    assert chosen.ids(Job.objects.all(), 5) == (ids, False)
    found, more = chosen.ids(Job.objects.all(), 3)
    assert (len(found), more) == (3, True)


@pytest.mark.django_db
def test_counting_stops_above_ten_thousand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "COUNT_MAX", 3)
    chosen = selection.Selection(DEAD, 2**62, EPOCH + timedelta(days=1))
    store([new_job("dead") for _ in range(3)])
    assert chosen.count(Job.objects.all()) == "3"
    store([new_job("dead") for _ in range(7)])

    with CaptureQueriesContext(connection) as captured:
        assert chosen.count(Job.objects.all()) == "3+"

    assert "LIMIT 4" in captured[0]["sql"]


def test_the_form_gives_back_what_the_page_stated() -> None:
    post = QueryDict("upper=42&as_of=2026-11-01T02%3A00%3A00%2B02%3A00")

    assert selection.as_shown(DEAD, post) == selection.Selection(DEAD, 42, EPOCH)


@pytest.mark.parametrize(
    "form",
    [
        "",
        "upper=42",
        "as_of=2026-11-01T00:00:00Z",
        "upper=x&as_of=2026-11-01T00:00:00Z",
        "upper=42&as_of=2026-11-01T00:00:00",
        "upper=42&as_of=now",
        "upper=-1&as_of=2026-11-01T00:00:00Z",
        f"upper={2**63}&as_of=2026-11-01T00:00:00Z",
    ],
)
def test_any_other_form_is_refused(form: str) -> None:
    with pytest.raises(ValidationError):
        selection.as_shown(DEAD, QueryDict(form))
