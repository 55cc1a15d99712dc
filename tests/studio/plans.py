"""Ask each database how it reads, and say what in the answer is no index read of the jobs."""

import json
import re
from typing import Any

from django.db import connection

from tests.support import vendor

JOB = "gnl_django_job"


def bad_steps(sql: str) -> list[str]:
    """Return the steps of a SELECT's plan that read the table of jobs without an index."""
    with connection.cursor() as cursor:
        if vendor() == "sqlite":
            cursor.execute("EXPLAIN QUERY PLAN " + sql)
            details = [row[3] for row in cursor.fetchall()]
            # Without conditions and in the order of ids, a scan ends at its LIMIT.
            if " WHERE " not in sql and " LIMIT " in sql and "B-TREE" not in "".join(details):
                return []
            return [text for text in details if re.search(rf"SCAN {JOB}(?! USING)", text)]
        if vendor() == "postgresql":
            cursor.execute("EXPLAIN (FORMAT JSON) " + sql)
            found = cursor.fetchone()[0]
            plan = json.loads(found) if isinstance(found, str) else found
            return [step for step in _steps(plan[0]["Plan"]) if step.startswith("Seq Scan")]
        cursor.execute("EXPLAIN " + sql)
        names = [column[0] for column in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        return [str(row) for row in rows if row["table"] == JOB and row["type"] == "ALL"]


def _steps(node: dict[str, Any]) -> list[str]:
    own = f"{node['Node Type']} {node.get('Index Name', '')} on {node.get('Relation Name', '')}"
    found = [own] if node.get("Relation Name") == JOB else []
    for child in node.get("Plans", []):
        found += _steps(child)
    return found
