"""What a side must offer, and the SQL some of them share.

`benchmarks.producer` calls these methods and measures around them.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence


def address() -> dict[str, str]:
    """Return host, port, user and dbname of the database under measurement."""
    return dict(part.split("=", 1) for part in os.environ["BENCH_DSN"].split())


class Side(ABC):
    """One peer in its own process, connected to its own database."""

    @abstractmethod
    def prepare(self) -> None:
        """Make the tables in an empty database."""

    @abstractmethod
    def reset(self) -> None:
        """Remove every job."""

    @abstractmethod
    def enqueue(self, number: int) -> None:
        """Enqueue the no-op job `number` the way its users do; committed at return."""

    @abstractmethod
    def unfinished(self) -> int:
        """Return how many jobs did not end well and are not due far in the future."""

    def seed(self, finished: int, scheduled: int) -> None:
        """Add rows of the past and rows due tomorrow, which no worker may touch."""
        raise NotImplementedError

    def enqueue_many(self, numbers: Sequence[int]) -> None:
        """Enqueue all `numbers` with the peer's bulk call."""
        raise NotImplementedError

    def enqueue_keyed(self, numbers: Sequence[int], orgs: int) -> None:
        """Enqueue all `numbers`, each with a unique key, spread over `orgs` lanes."""
        raise NotImplementedError

    def load(self, numbers: Sequence[int], orgs: int = 0) -> None:
        """Make the jobs exist, in whatever way is quick: not measured."""
        if orgs:
            self.enqueue_keyed(numbers, orgs)
        else:
            self.enqueue_many(numbers)

    def enqueue_for(self, org: str, number: int) -> None:
        """Enqueue one job of an organization."""
        raise NotImplementedError


def clone_sql(
    table: str, columns: Sequence[str], values: Mapping[str, str], template: str, count: int
) -> str:
    """Return an INSERT of `count` copies of the row that the condition `template` names.

    `values` gives SQL for the columns that differ; `g` counts from 0. PostgreSQL.
    """
    names = ", ".join(f'"{column}"' for column in columns)
    picked = ", ".join(values.get(column, f'r."{column}"') for column in columns)
    return (
        f'INSERT INTO "{table}" ({names}) SELECT {picked}'
        f' FROM (SELECT * FROM "{table}" WHERE {template} LIMIT 1) r,'
        f" generate_series(0, {count - 1}) g"
    )
