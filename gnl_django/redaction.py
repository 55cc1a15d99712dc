"""Hides secrets in users' values before anybody sees them: by key, by kind, by the project's hook.

Called by the admin for every payload, result and progress it shows. When something is wrong with
the hook or the value, less is shown rather than more (security.md D7, N8).
"""

import logging
import re
from functools import cache
from typing import Any

from django.utils.module_loading import import_string

from gnl_django import conf
from gnl_django.queue.options import kinds

logger = logging.getLogger(__name__)

HIDDEN = "***"
SENSITIVE = "*** (sensitive)"
#: A longer key is not searched, so that a hostile one costs nothing: its value is hidden.
KEY_MAX = 256
#: Values nest 32 deep at most when we stored them; others may have written the row.
DEPTH_MAX = 64


def redact(kind: str, value: Any, *, sensitive: bool = False) -> Any:
    """Return `value` as it may be shown to anyone who may see the job.

    kind: whose value it is; a kind declared sensitive, or `sensitive=True` (as the row says), gives
    `"*** (sensitive)"` whole. Else values whose key matches GNL["REDACT_KEYS"] become `"***"`, and
    GNL["REDACT"] may change the rest. The value given is not touched.
    """
    declared = kinds.known(kind)
    if sensitive or (declared is not None and declared.sensitive):
        return SENSITIVE
    return redact_keys(kind, value)


def redact_keys(kind: str, value: Any) -> Any:
    """Return `value` with its secrets hidden; for people who may see sensitive kinds too."""
    settings = conf.settings()
    try:
        shown = _without_secrets(value, _pattern(settings.REDACT_KEYS), 0)
        return shown if settings.REDACT is None else import_string(settings.REDACT)(kind, shown)
    except Exception as error:  # noqa: BLE001 - the hook is the project's, and so is the pattern
        # Not the exception's text: it may quote the value.
        logger.error("Redaction failed (%s); a value is hidden whole", type(error).__name__)  # noqa: TRY400
        return HIDDEN


@cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.IGNORECASE)


def _without_secrets(value: Any, secret: re.Pattern[str], depth: int) -> Any:
    if not isinstance(value, (dict, list, tuple)):
        return value
    if depth == DEPTH_MAX:
        return HIDDEN
    if isinstance(value, dict):
        return {
            key: HIDDEN if _is_secret(key, secret) else _without_secrets(part, secret, depth + 1)
            for key, part in value.items()
        }
    return [_without_secrets(part, secret, depth + 1) for part in value]


def _is_secret(key: object, secret: re.Pattern[str]) -> bool:
    text = str(key)
    return len(text) > KEY_MAX or secret.search(text) is not None
