"""A run is written between the marks of the page, and drawn as one well-formed picture."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import publish, report
from benchmarks.plan import FULL
from benchmarks.plot import draw
from benchmarks.publish import BEGIN, END, PAGE, PublishError, newest, rewrite, section
from benchmarks.results import Results
from benchmarks.targets import judge


def run(scale: float = 1.0) -> report.Document:
    """Return a run of two peers and two sections."""
    results = Results()
    for metric, own, other in (
        ("drain1", 5000.0, 300.0),
        ("latency_after_p50", 2.5, 130.0),
        ("latency_after_p99", 9.5, 200.0),
        ("duel_sync10", 6000.0, 5000.0),
    ):
        results.add(metric, "gnl", own)
        results.add(metric, "pgqueuer", other)
    facts = {
        "commit": "abc123",
        "cores": 2,
        "memory_mib": 4096,
        "versions": {"pgqueuer": {"pgqueuer": "1.6.0"}, "gnl": {"gnl-django": "0.1.0"}},
        "server": {
            "server_version": "18.4",
            "filesystem": "ext4",
            "fsync": "on",
            "synchronous_commit": "on",
        },
    }
    return {
        "written_at": "2026-11-30T23:00:00+00:00",
        "sections": ["drain", "latency"],
        "peers": ["pgqueuer", "gnl"],
        "facts": facts,
        "sizes": {"scale": FULL.scaled(scale).scale},
        "medians": {
            metric: {peer: results.median(metric, peer) for peer in peers}
            for metric, peers in results.samples.items()
        },
        "targets": [verdict.plain() for verdict in judge(results)],
        "series": {"held": {"gnl": [[1.0, 5000.0], [2.0, 4000.0]]}},
        "drains": [{"correct": True, "foreign_cores": 0.25}],
        "notes": ["LEFT OUT: <celery> & Redis"],
    }


def test_only_what_stands_between_the_marks_is_replaced() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert rewrite(page, "new") == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"


def test_a_page_without_its_marks_is_refused() -> None:
    with pytest.raises(PublishError, match="marks"):
        rewrite("a page", "new")


def test_the_page_of_the_documentation_has_the_marks() -> None:
    assert rewrite(PAGE.read_text(), "new").count("new\n\n" + END) == 1


def test_the_section_says_what_was_met_with_date_commit_and_versions() -> None:
    text = section(run())
    assert "30 November 2026, commit abc123" in text
    assert "1 of 1 drains ran every job exactly once" in text
    assert "| pick-up p50, told by NOTIFY | at most 3 ms | 2.50 | met |" in text
    assert "| drain at 10, threads, to pgqueuer | at least 1.25 x | 1.20 | **MISSED** |" in text
    assert "- pgqueuer: pgqueuer 1.6.0" in text


def test_the_picture_is_well_formed_and_bears_date_and_versions() -> None:
    picture = draw(run())
    root = ElementTree.fromstring(picture)  # noqa: S314 - our own text
    texts = " ".join(filter(None, (node.text for node in root.iter())))
    assert "30 November 2026" in texts
    assert "pgqueuer 1.6.0" in texts
    assert "prefers-color-scheme: dark" in texts


def test_a_scaled_run_is_only_for_a_look(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results-1.json"
    file.write_text(json.dumps(run(0.1)))
    assert publish.main([str(file)]) == 1
    assert "scaled" in capsys.readouterr().err
    assert publish.main([str(file), "--to", str(tmp_path)]) == 0
    assert "too small to judge by" in (tmp_path / PAGE.name).read_text()
    assert "SCALE=0.1" in (tmp_path / "img" / publish.PICTURE.name).read_text()


def test_without_a_run_there_is_nothing_to_publish(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match="make bench"):
        newest(tmp_path)
