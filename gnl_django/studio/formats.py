"""How states, times and errors read on a page. Pure functions: no request, no database.

Called by the list and the detail page; everything they return is escaped.
"""

from datetime import UTC, datetime, timedelta

from django.utils.html import format_html
from django.utils.safestring import SafeString

from gnl_django.queue.models import Job, State

#: State -> (glyph, palette name); the word always stands beside the glyph.
BADGES = {
    State.SCHEDULED: ("◷", "wait"),
    State.READY: ("○", "idle"),
    State.RUNNING: ("▶", "run"),
    State.SUCCEEDED: ("✓", "ok"),
    State.DEAD: ("✕", "dead"),
    State.CANCELED: ("⊘", "idle"),
}
LINE_MAX = 200
MINUTE, HOUR, DAY = 60, 3_600, 86_400


def badge(state: str) -> SafeString:
    """Return a state as glyph and word."""
    glyph, palette = BADGES.get(State(state), ("", "idle")) if state in State else ("", "idle")
    return format_html(
        '<span class="gnl-badge gnl-{}"><span aria-hidden="true">{}</span> {}</span>',
        palette,
        glyph,
        state.capitalize(),
    )


def span(seconds: float) -> str:
    """Return a length of time in at most two units: "350 ms", "12 s", "1 h 04 min", "3 d 2 h"."""
    if seconds < 1:
        return f"{max(0, round(seconds * 1000))} ms"
    whole = int(seconds)
    if whole < MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return f"{whole // MINUTE} min"
    if whole < DAY:
        return f"{whole // HOUR} h {whole % HOUR // MINUTE:02} min"
    return f"{whole // DAY} d {whole % DAY // HOUR} h"


def stamp(moment: datetime) -> str:
    """Return the exact time in UTC."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def time_tag(moment: datetime, text: str) -> SafeString:
    """Return `text` with the exact time behind it, for machines and in the title."""
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}",
        stamp(moment),
        text,
    )


def ago(moment: datetime, now: datetime) -> SafeString:
    """Return "4 min ago" or "in 4 min"."""
    seconds = (now - moment).total_seconds()
    return time_tag(moment, f"{span(seconds)} ago" if seconds >= 0 else f"in {span(-seconds)}")


def exact(moment: datetime, now: datetime) -> SafeString:
    """Return the exact time and, behind it, how far away it is."""
    return format_html("{} ({})", stamp(moment), ago(moment, now))


def when(job: Job, now: datetime) -> SafeString:
    """Return the time that matters in the job's state, with the word that says which it is."""
    if job.finished_at is not None:
        verb = {"dead": "died", "canceled": "canceled"}.get(job.state, "finished")
        return format_html("{} {}", verb, ago(job.finished_at, now))
    if job.state == State.RUNNING and job.started_at is not None:
        text = f"for {span((now - job.started_at).total_seconds())}"
        return format_html("running {}", time_tag(job.started_at, text))
    wait = (now - job.run_at).total_seconds()
    if job.state == State.SCHEDULED:
        verb = "retry" if job.attempt else "due"
        return format_html("{} {}", verb, ago(job.run_at, now))
    return format_html("waits {}", time_tag(job.run_at, span(wait)))


def first_line(text: str) -> str:
    """Return the first line that says something, cut to what fits a row."""
    line = next((part.strip() for part in text.splitlines() if part.strip()), "")
    return line if len(line) <= LINE_MAX else line[: LINE_MAX - 1] + "…"


def short_class(path: str) -> str:
    """Return the last part of a class's dotted path."""
    return path.rpartition(".")[2]


def days(kept: timedelta | float | None) -> str:
    """Return how long jobs are kept, in words."""
    if kept is None:
        return "for ever"
    seconds = kept.total_seconds() if isinstance(kept, timedelta) else kept
    number = f"{seconds / 86_400:.1f}".removesuffix(".0")
    return f"{number} days"
