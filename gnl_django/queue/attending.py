"""Waiting for the jobs of one pass: what `Worker.run_once` does around its claim (queue.md R48).

An outcome outlives an outage of the database (R34). Any other error reaches the caller, but only
when nothing of the pass is open any more: no handler of it runs, and no job of it is held.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from gnl_django.core.backoff import Growing
from gnl_django.core.db import Fault, fault_of, reconnect
from gnl_django.core.loop import RECOVERING
from gnl_django.queue.execution import Outbox
from gnl_django.queue.passes import Driver


@contextmanager
def attended(
    driver: Driver, outbox: Outbox, *, using: str, poll: float, inline: bool
) -> Iterator[None]:
    """Settle everything that `driver` claims in the block, also when the block raises.

    poll: longest time between two looks, in seconds. inline: on the caller's transaction, where
    nothing can be tried again. Raises the first error that is not an outage; what then cannot be
    written at a second try either counts as lost, and its lease runs out.
    """
    waits = Growing(min(0.05, poll), poll)
    try:
        yield
    except Exception as error:
        if not inline and fault_of(error) in RECOVERING:
            reconnect(using)
        with suppress(Exception):  # the first error is the one to be told
            driver.release_unknown()
        with suppress(Exception):
            _settle_all(driver, outbox, waits, using=using, poll=poll, inline=inline)
        raise
    _settle_all(driver, outbox, waits, using=using, poll=poll, inline=inline)


def _settle_all(
    driver: Driver, outbox: Outbox, waits: Growing, *, using: str, poll: float, inline: bool
) -> None:
    failure: Exception | None = None
    while driver.open:
        outbox.gather(driver.open, poll)
        try:
            driver.settle()
        except Exception as error:  # noqa: BLE001 - raised when nothing is open any more
            if not inline and fault_of(error) in {*RECOVERING, Fault.TRANSIENT}:
                reconnect(using)
                outbox.gather(driver.open + 1, waits.take())
                continue
            if inline or (failure is not None and not driver.running):
                driver.abandon()
            failure = failure or error
    if failure is not None:
        raise failure
