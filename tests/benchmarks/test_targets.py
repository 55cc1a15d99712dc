"""Targets are judged by medians of one run; what was not measured is neither met nor missed."""

from benchmarks.hits import Hit
from benchmarks.plan import SECTIONS
from benchmarks.results import Results
from benchmarks.sections.prompt import full_speed, percentile
from benchmarks.targets import TARGETS, judge


def verdicts(results: Results) -> dict[str, bool | None]:
    return {verdict.target.title: verdict.met for verdict in judge(results)}


def test_every_target_names_a_section_that_measures_it() -> None:
    assert {target.section for target in TARGETS} <= set(SECTIONS)


def test_without_a_measurement_a_target_is_neither_met_nor_missed() -> None:
    assert set(verdicts(Results()).values()) == {None}


def test_a_ratio_is_that_of_the_medians() -> None:
    results = Results()
    for own, other in ((125, 100), (1, 1000), (300, 90)):
        results.add("duel_sync10", "gnl", own)
        results.add("duel_sync10", "pgqueuer", other)
    assert verdicts(results)["drain at 10, threads, to pgqueuer"] is True
    results.add("duel_sync10", "pgqueuer", 101)
    results.add("duel_sync10", "pgqueuer", 101)
    assert verdicts(results)["drain at 10, threads, to pgqueuer"] is False


def test_the_fastest_peer_is_the_one_to_be_faster_than() -> None:
    results = Results()
    for peer, rate in (("gnl", 100.0), ("django-ox", 50.0), ("pgqueuer", 110.0), ("celery", 900.0)):
        results.add("single", peer, rate)
    assert verdicts(results)["single enqueue, to the fastest peer on PostgreSQL"] is False
    results.samples["single"]["pgqueuer"] = [99.0]
    assert verdicts(results)["single enqueue, to the fastest peer on PostgreSQL"] is True


def test_full_speed_is_reached_where_the_first_fast_stretch_begins() -> None:
    slow = [Hit(at * 10_000_000, at) for at in range(50)]  # 100 jobs a second
    start = slow[-1].at_ns
    fast = [Hit(start + at * 1_000_000, 50 + at) for at in range(1, 51)]
    assert full_speed([*slow, *fast], 0, 900) == start / 1e9
    assert full_speed([*slow, *fast], 0, 90) == 0
    assert full_speed(slow, 0, 900) == float("inf")


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
