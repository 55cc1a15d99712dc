"""A worker in a project that uses OpenTelemetry: its spans are exported before it ends (R53)."""

import json
from typing import Any

import pytest

from gnl_django import enqueue
from tests.anywhere.conftest import configured
from tests.procs import Spawner

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.row("queue", "C151")]

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ENV = configured({}, GNL_TEST_OTEL="1")


def exported(output: str) -> list[dict[str, Any]]:
    """Return the spans among a worker's lines, as the console exporter prints them."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while (at := output.find('{\n    "name":', at)) >= 0:
        span, length = decoder.raw_decode(output[at:])
        found.append(span)
        at += length
    return found


def test_a_worker_that_ends_by_itself_has_exported_its_spans(spawn: Spawner) -> None:
    job_id = enqueue("tests.act", {"do": "end"}, meta={"traceparent": PARENT})
    worker = spawn(["gnl_worker", "--until-idle", "--name", "traced"], env=ENV)
    assert worker.wait() == 0, worker.output()
    (span,) = exported(worker.output())
    assert (span["name"], span["status"]) == ("queue.runJob", {"status_code": "OK"})
    assert span["context"]["trace_id"] == f"0x{PARENT[3:35]}"
    assert span["parent_id"] == f"0x{PARENT[36:52]}"
    assert span["attributes"]["abs.job.id"] == job_id
    assert span["attributes"]["abs.worker.id"].startswith("traced/")


def test_a_worker_whose_handler_outlasts_it_has_exported_them_too(spawn: Spawner) -> None:
    deaf = enqueue("tests.act", {"do": "ignore"})
    worker = spawn(["gnl_worker", "--grace", "0"], env=ENV)
    worker.wait_line(f"act {deaf} attempt 1 starts")
    worker.term()
    assert worker.wait() == 0, worker.output()
    (span,) = exported(worker.output())
    assert span["attributes"]["abs.job.id"] == deaf
    assert span["status"] == {"status_code": "UNSET"}
