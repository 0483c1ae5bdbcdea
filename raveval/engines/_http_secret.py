"""A server's key: read from the environment, sent, and never shown."""

from __future__ import annotations

import html
import json
import logging
import os
import re
import socket
import urllib.parse

from typing_extensions import override

from raveval.errors import ConfigError

_KEY = re.compile(r"[!-~]+")
_LEAST_SECRET_CHARS = 12
_LOGGERS = ("httpx", "httpcore.http11", "httpcore.connection", "httpcore.proxy")


class Secret:
    """A key. None of its forms may stand in a message, a log or a reply."""

    def __init__(self, value: str) -> None:
        self._value = value
        forms = {
            value,
            urllib.parse.quote(value, safe=""),
            html.escape(value),
            html.escape(value, quote=False),
            json.dumps(value)[1:-1],
        }
        self._forms = sorted(forms, key=len, reverse=True)
        self._filter = _Hiding(self)

    @override
    def __repr__(self) -> str:
        return "Secret(…)"

    def header(self) -> str:
        """Return what proves who asks."""
        return f"Bearer {self._value}"

    def hide(self, text: str) -> str:
        """Return a text without the key, in whichever way a server may have written it.

        >>> Secret("a<b").hide("no such key: a&lt;b")
        'no such key: [key]'
        """
        for form in self._forms:
            text = text.replace(form, "[key]")
        return text

    def is_in(self, text: str) -> bool:
        """Whether a text holds the key."""
        return any(form in text for form in self._forms)

    def is_leaked_by(self, text: str) -> bool:
        """Whether a generated text holds it; a short one, such as "EMPTY", may do so by chance."""
        return len(self._value) >= _LEAST_SECRET_CHARS and self.is_in(text)

    def guard_logs(self) -> None:
        """Keep the key out of what the HTTP library logs: a server's headers may hold an echo."""
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(self._filter)

    def leave_logs(self) -> None:
        """Undo `guard_logs`."""
        for name in _LOGGERS:
            logging.getLogger(name).removeFilter(self._filter)


class _Hiding(logging.Filter):
    def __init__(self, secret: Secret) -> None:
        super().__init__()
        self._secret = secret

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if self._secret.is_in(message):
            record.msg, record.args = self._secret.hide(message), ()
        return True


def read(variable: str) -> Secret:
    """Return the key that an environment variable holds.

    Raises:
        ConfigError: it is not set here, or holds no key; the message does not repeat it.
    """
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ConfigError(
            f"engine http: api_key_env: the environment variable {variable} is not set on "
            f"{socket.gethostname()}; set it where replicas run"
        )
    if not _KEY.fullmatch(key):
        raise ConfigError(
            f"engine http: api_key_env: what {variable} holds is no key: it has white space or "
            "characters beyond ASCII"
        )
    return Secret(key)
