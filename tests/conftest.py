"""Fixtures and rules of every test: the database, child processes, markers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import TransactionTestCase

from tests.database import with_database
from tests.pgbouncer import PrivatePgBouncer, missing
from tests.procs import Spawner
from tests.run import in_ci
from tests.tables import empty_tables

NEEDS = {"postgres": "postgresql", "mysql": "mysql", "sqlite": "sqlite"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests that are marked for other databases than this run's.

    The marker's text is the reason: `@pytest.mark.postgres("only PostgreSQL has NOTIFY")`.
    """
    database = config.getoption("db")
    for item in items:
        marks = [mark for mark in item.iter_markers() if mark.name in NEEDS]
        if marks and database not in {NEEDS[mark.name] for mark in marks}:
            names = " or ".join(sorted({NEEDS[mark.name] for mark in marks}))
            reason = next((str(mark.args[0]) for mark in marks if mark.args), "")
            item.add_marker(
                pytest.mark.skip(reason=f"for {names}" + (f": {reason}" if reason else ""))
            )


@pytest.fixture(scope="session")
def django_db_keepdb(request: pytest.FixtureRequest) -> bool:
    """Leave the test database to the server's end; on somebody else's server drop it."""
    import os

    return "TEST_MYSQL_URL" not in os.environ or request.config.getoption("db") != "mysql"


@pytest.fixture(scope="session", autouse=True)
def _cheap_flush() -> Iterator[None]:
    """Empty the tables after a transactional test in our own way (tests.tables)."""
    original = TransactionTestCase._fixture_teardown

    def teardown(self: TransactionTestCase) -> None:
        if self.available_apps is not None or self.serialized_rollback:
            original(self)
        else:
            for alias in self._databases_names(include_mirrors=False):
                empty_tables(alias)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", teardown)
        yield


@pytest.fixture
def database_url(transactional_db: None) -> str:
    """Return a DATABASE_URL of the test database, for child processes."""
    import os

    return with_database(os.environ["DATABASE_URL"], str(connection.settings_dict["NAME"]))


@pytest.fixture
def spawn(database_url: str, tmp_path: Path) -> Iterator[Spawner]:
    """Start child processes: `spawn(["gnl_worker", "--until-idle"])` (tests.procs)."""
    spawner = Spawner(database_url, tmp_path)
    yield spawner
    spawner.close()


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Trace, as a project that uses OpenTelemetry does: `spans.get_finished_spans()`."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # Set for one test: set_tracer_provider works once a process.
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


@pytest.fixture
def pooler(transactional_db: None) -> Iterator[PrivatePgBouncer]:
    """Put a PgBouncer before this run's server; in CI it must be there."""
    import os

    without = missing()
    if without and not in_ci():
        pytest.skip(f"NOT TESTED BEHIND PgBouncer: {without}")
    assert not without, without
    if "GNL_TEST_POOLED" in os.environ:
        pytest.skip("this run is behind one already")
    with PrivatePgBouncer(int(connection.settings_dict["PORT"])) as pooler:
        yield pooler
