"""What a floor warns of; every floor's `health.warnings(using)` returns a list of these.

`gnl_status`, the health page and the Overview add them up, so that the three never disagree.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class HealthWarning:
    """One thing that is wrong.

    code: names the sort, for programs; it never changes. subject: the queue or the like. text: one
    sentence for people. count: how many rows; the least number when `text` says "at least".
    """

    code: str
    subject: str
    text: str
    count: int = 0
