"""Access tokens by OAuth 2.0 client credentials (RFC 6749, section 4.4)."""

from __future__ import annotations

import json
import math
import re
import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote_plus, urlencode

from transporter.errors import RouteFault, SinkUnavailable
from transporter_adaptors.http.answers import describe_answer, is_ack, sink_error
from transporter_adaptors.http.targets import basic_credentials

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transporter_adaptors.http.answers import Answer
    from transporter_adaptors.http.client import Client
    from transporter_adaptors.http.config import OAuth2

_EARLY_SECONDS: Final = 30.0
_EARLY_SHARE: Final = 0.1
"""A token is replaced so long, or this share of its time, before it expires, if that is less."""

_TOKEN: Final = re.compile(r"[!-~]+")


class Tokens:
    """A token that is fetched, and kept until shortly before it expires. Not thread-safe."""

    def __init__(
        self,
        config: OAuth2,
        client: Client,
        on_answer: Callable[[Answer], float],
        secrets: Sequence[str],
    ) -> None:
        """Fetch nothing yet. *on_answer* is called with each answer that may ask for a pause.

        Nothing of *secrets* is ever shown.
        """
        self._config, self._client, self._on_answer, self._secrets = (
            config,
            client,
            on_answer,
            secrets,
        )
        self._token = ""
        self._expires_at = 0.0

    @property
    def token(self) -> str:
        """The newest token, or an empty text before the first."""
        return self._token

    def header(self, seconds: float) -> str:
        """Return the header ``Authorization`` for a request that is sent now.

        Raises:
            SinkUnavailable: No token can be fetched now, within *seconds*.
            RouteFault: The endpoint refuses, or answers without a token.
        """
        if not self._token or time.monotonic() >= self._expires_at:
            self._fetch(seconds)
        return f"Bearer {self._token}"

    def invalidate(self) -> None:
        """Fetch another token for the next request, because this one was refused."""
        self._expires_at = 0.0

    def _fetch(self, seconds: float) -> None:
        begun = time.monotonic()
        path = self._config.target.path
        answer = self._client.send("POST", path, self._body(), self._headers(), seconds)
        if not is_ack(answer):
            raise self._refusal(answer)
        fields = _parse_fields(answer.text)
        token, kind = fields.get("access_token"), fields.get("token_type", "Bearer")
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise RouteFault(f"{self._client.place} answered without a token: check token_url")
        if str(kind).lower() != "bearer":
            raise RouteFault(f"{self._client.place} returned a token that is not a bearer token")
        self._token = token
        self._expires_at = begun + _seconds_to_keep(fields.get("expires_in"))

    def _refusal(self, answer: Answer) -> Exception:
        error = sink_error(answer, self._client.place, secrets=self._secrets)
        if error.retriable:
            wait = self._on_answer(answer)
            return SinkUnavailable(str(error), wait) if wait else error
        text = describe_answer(answer, self._client.place, self._secrets)
        return RouteFault(f"{text}: check the settings of oauth2")

    def _headers(self) -> dict[str, str]:
        headers = {
            "User-Agent": "transporter",
            "Accept": "application/json",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        if self._config.client_auth == "basic":
            # Section 2.3.1 requires both encoded as in a form.
            user, secret = map(quote_plus, self._credentials())
            headers["Authorization"] = basic_credentials(user, secret)
        return headers

    def _body(self) -> bytes:
        fields = {"grant_type": "client_credentials", **self._config.parameters}
        if self._config.scope is not None:
            fields["scope"] = self._config.scope
        if self._config.client_auth == "post":
            fields["client_id"], fields["client_secret"] = self._credentials()
        return urlencode(fields).encode()

    def _credentials(self) -> tuple[str, str]:
        return self._config.client_id, self._config.client_secret.get_secret_value()


def _parse_fields(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _seconds_to_keep(expires_in: object) -> float:
    """Return the seconds for which a token is kept. Without a time it is kept until refused."""
    try:
        seconds = float(str(expires_in))
    except ValueError:
        return math.inf
    if not math.isfinite(seconds):
        return math.inf
    return seconds - min(_EARLY_SECONDS, _EARLY_SHARE * seconds)
