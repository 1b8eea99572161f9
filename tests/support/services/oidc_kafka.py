"""A Kafka broker that accepts the tokens of an OpenID provider, and a small such provider."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from http_tools import Receiver, Reply
from services.kafka import Broker, free_port

if TYPE_CHECKING:
    from pathlib import Path

    from http_tools import Request

AUDIENCE = "kafka-of-the-shop"
_KEY = b"a key of the provider and of nobody else"
_OIDC = """
listeners={listeners},OIDC://127.0.0.1:{port}
advertised.listeners=PLAINTEXT://{plain},OIDC://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,OIDC:SASL_PLAINTEXT
sasl.enabled.mechanisms=OAUTHBEARER
listener.name.oidc.oauthbearer.sasl.jaas.config=\\
  org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;
listener.name.oidc.oauthbearer.sasl.server.callback.handler.class=\\
  org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler
listener.name.oidc.oauthbearer.sasl.oauthbearer.jwks.endpoint.url={keys}
listener.name.oidc.oauthbearer.sasl.oauthbearer.expected.audience={audience}
listener.name.oidc.oauthbearer.connections.max.reauth.ms=3600000
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:ada
"""


class Provider(Receiver):
    """Issues tokens to clients with a known secret, and its key to any client."""

    def __init__(self, lifetime: float = 3600.0) -> None:
        super().__init__(self._reply)
        self.lifetime = lifetime
        self.secrets = {"ada": "s3cr3t-of-ada"}
        self.away = False

    def asked(self) -> list[dict[str, str]]:
        """Return the fields of each request for a token."""
        forms = [each.body.decode() for each in self.requests if each.method == "POST"]
        return [{name: value for name, (value,) in parse_qs(form).items()} for form in forms]

    def _reply(self, request: Request) -> Reply:
        if request.method == "GET":
            key = {"kty": "oct", "kid": "1", "alg": "HS256", "k": _text(_KEY)}
            return _json({"keys": [key]})
        if self.away:
            return _json({"error": "temporarily_unavailable"}, 400)
        credentials = request.headers["authorization"].removeprefix("Basic ")
        user, _, secret = base64.b64decode(credentials).decode().partition(":")
        if self.secrets.get(user) != secret:
            return _json({"error": "invalid_client", "error_description": secret}, 401)
        return _json(
            {
                "access_token": self._token(user),
                "token_type": "Bearer",
                "expires_in": self.lifetime,
            }
        )

    def _token(self, user: str) -> str:
        now = int(time.time())
        claims = {"sub": user, "aud": AUDIENCE, "iat": now, "exp": now + int(self.lifetime)}
        head = {"alg": "HS256", "typ": "JWT", "kid": "1"}
        signed = f"{_text(json.dumps(head).encode())}.{_text(json.dumps(claims).encode())}"
        return f"{signed}.{_text(hmac.digest(_KEY, signed.encode(), hashlib.sha256))}"


def _text(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def _json(fields: dict[str, Any], status: int = 200) -> Reply:
    headers = (("Content-Type", "application/json"),)
    return Reply(status, headers, json.dumps(fields).encode())


class OidcBroker(Broker):
    """A broker with a second listener, for tokens of *provider*. The first accepts every client."""

    def __init__(self, provider: Provider, java: Path, jars: list[Path], folder: Path) -> None:
        super().__init__(java, jars, folder)
        port, keys = free_port(), f"http://127.0.0.1:{provider.port}/keys"
        self.oidc = f"127.0.0.1:{port}"
        self._java.insert(1, f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys}")
        path = folder / "server.properties"
        text = path.read_text()
        (listeners,) = re.findall(r"^listeners=(.*)$", text, re.MULTILINE)
        more = {"plain": self.bootstrap_servers, "keys": keys, "audience": AUDIENCE}
        path.write_text(text + _OIDC.format(listeners=listeners, port=port, **more))
