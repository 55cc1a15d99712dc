"""What was raised, as text that every database takes and that never raises itself.

Used wherever an exception of a user's code is stored: whatever it holds (NUL, surrogates, a
megabyte, a `__str__` that raises), something readable comes out (queue.md R36).
"""

from gnl_django.core.payloads import clean_text

CLASS_MAX = 255
TEXT_MAX_BYTES = 8 * 1024


def class_path(error: BaseException) -> str:
    """Return the exception's class as a full dotted path."""
    return clean_text(f"{type(error).__module__}.{type(error).__qualname__}", CLASS_MAX)


def text_of(error: BaseException) -> str:
    """Return `Class: message`, at most 8 KiB."""
    try:
        said = str(error)
    except BaseException:  # noqa: BLE001 - a user's __str__ may raise anything
        said = "(its text cannot be read)"
    return clean_text(f"{type(error).__name__}: {said}", TEXT_MAX_BYTES)
