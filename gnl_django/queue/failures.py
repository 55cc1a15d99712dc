"""An exception as the queue stores it: class, text, traceback, and the key of its group.

Called when an attempt has failed. Whatever the exception holds (NUL, surrogates, a megabyte, a
`__str__` that raises), the outcome is written (queue.md R36, security.md D5).
"""

import os
import sysconfig
from dataclasses import dataclass
from traceback import TracebackException
from types import TracebackType

import gnl_django
from gnl_django.core.payloads import clean_text
from gnl_django.core.raised import class_path, text_of
from gnl_django.errors import InvalidPayload
from gnl_django.queue.error_keys import error_key

TRACEBACK_MAX_BYTES = 32 * 1024

#: Code below these directories is not the project's.
_FOREIGN = tuple(
    {
        os.path.join(path, "")
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        if (path := sysconfig.get_paths().get(name))
    }
    | {os.path.join(os.path.dirname(gnl_django.__file__), "")}
)


@dataclass(frozen=True)
class Failure:
    """The stored form of one exception."""

    error_class: str
    error: str
    error_key: str
    traceback: str


def describe(kind: str, error: BaseException) -> Failure:
    """Return the stored form of what a handler of `kind` raised."""
    error_class = class_path(error)
    return Failure(
        error_class=error_class,
        error=text_of(error),
        error_key=error_key(kind, error_class, place_of(error)),
        traceback=_traceback(error),
    )


def place_of(error: BaseException) -> str:
    """Return `module:function:line` of the deepest frame of project code, "" without one.

    For InvalidPayload: the path of its first issue (studio.md R45).
    """
    if isinstance(error, InvalidPayload):
        return error.issues[0].path if error.issues else ""
    place = ""
    frame: TracebackType | None = error.__traceback__
    while frame is not None:
        code = frame.tb_frame.f_code
        if not code.co_filename.startswith(("<", *_FOREIGN)):
            module = frame.tb_frame.f_globals.get("__name__", "")
            place = f"{module}:{code.co_name}:{frame.tb_lineno}"
        frame = frame.tb_next
    return place


def _traceback(error: BaseException) -> str:
    try:
        text = "".join(TracebackException.from_exception(error).format())
    except Exception:  # noqa: BLE001 - what it quotes may raise anything
        return ""
    if len(text) > TRACEBACK_MAX_BYTES // 4:
        # Both ends matter: where it came from, and where it broke.
        head = clean_text(text, TRACEBACK_MAX_BYTES // 4)
        tail = clean_text(text[-TRACEBACK_MAX_BYTES // 2 :], TRACEBACK_MAX_BYTES // 2)
        if len(text) > len(head) + len(tail):
            text = f"{head}\n  ...\n{tail}"
    return clean_text(text, TRACEBACK_MAX_BYTES)
