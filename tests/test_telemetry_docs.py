"""docs/telemetry.md says what happens: its example is run."""

from pathlib import Path

from tests import docs
from tests.anywhere.test_tracing import exported

PROGRAM = (
    "import django; django.setup(); import shop.tracing; "
    "from django.core.management import call_command; call_command('migrate', verbosity=0); "
    "exec(open('order.py').read())"
)


def test_the_example_of_the_docs_makes_three_spans_of_one_trace(tmp_path: Path) -> None:
    files = docs.examples("telemetry.md")
    assert set(files) == {"shop/tracing.py", "shop/background.py", "order.py"}
    printed = docs.run(tmp_path, files, "-c", PROGRAM)
    spans = {span["name"]: span for span in exported(printed)}
    assert set(spans) == {"checkout", "queue.runJob", "render"}, printed
    assert len({span["context"]["trace_id"] for span in spans.values()}) == 1
    parents = {name: span["parent_id"] for name, span in spans.items()}
    assert parents == {
        "checkout": None,
        "queue.runJob": spans["checkout"]["context"]["span_id"],
        "render": spans["queue.runJob"]["context"]["span_id"],
    }
