"""docs/telemetry.md says what happens: its example is run."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.anywhere.test_tracing import exported

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = (
    "import django; django.setup(); import shop.tracing; "
    "from django.core.management import call_command; call_command('migrate', verbosity=0); "
    "exec(open('order.py').read())"
)


def test_the_example_of_the_docs_makes_three_spans_of_one_trace(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "telemetry.md").read_text()
    blocks = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", text, re.DOTALL))
    assert set(blocks) == {"shop/tracing.py", "shop/background.py", "order.py"}
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    for name, code in blocks.items():
        (tmp_path / name).write_text(code)
    (tmp_path / "shop_settings.py").write_text(
        "INSTALLED_APPS = ['django.contrib.auth', 'django.contrib.contenttypes',"
        " 'gnl_django', 'shop']\n"
        "DATABASES = {'default': {'ENGINE': 'django.db.backends.sqlite3', 'NAME': 'shop.db'}}\n"
        "USE_TZ = True\nSECRET_KEY = 'x'\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
            "DJANGO_SETTINGS_MODULE": "shop_settings",
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    spans = {span["name"]: span for span in exported(done.stdout)}
    assert set(spans) == {"checkout", "queue.runJob", "render"}, done.stdout
    assert len({span["context"]["trace_id"] for span in spans.values()}) == 1
    parents = {name: span["parent_id"] for name, span in spans.items()}
    assert parents == {
        "checkout": None,
        "queue.runJob": spans["checkout"]["context"]["span_id"],
        "render": spans["queue.runJob"]["context"]["span_id"],
    }
