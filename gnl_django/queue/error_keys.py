"""The key that groups failures: same kind, same exception class, same place in the project's code.

Written with every failure (studio.md R45); the message plays no part, so that digits in it do not
split one fault into thousands.
"""

import hashlib


def error_key(kind: str, error_class: str, place: str = "") -> str:
    """Return 16 hex digits for `place` = `module:function:line` ("" when no project code ran)."""
    return hashlib.sha256(f"{kind}\0{error_class}\0{place}".encode(errors="replace")).hexdigest()[
        :16
    ]
