"""Settings of the HTTP writer."""

from __future__ import annotations

import base64
import re
from contextlib import suppress
from string import Formatter
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self
from urllib.parse import quote_plus, unquote

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from transporter.adaptor import AdaptorConfig, Duration, LocalPath, Size
from transporter.message import OPS
from transporter_adaptors.http.targets import (
    FIELDS,
    basic_credentials,
    fill_url,
    proxy_of,
    target_of,
)
from transporter_adaptors.templates import fields_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from transporter_adaptors.http.targets import Proxy, Target

OWNED: Final = {
    "connection": "the writer keeps its connection open",
    "content-encoding": "use compression",
    "content-length": "the body decides",
    "content-type": "the format decides",
    "expect": "the writer sends the body at once",
    "host": "the URL decides",
    "idempotency-key": "the entries decide",
    "proxy-authorization": "use proxy",
    "traceparent": "the entries decide",
    "tracestate": "the entries decide",
    "transfer-encoding": "the body decides",
}
"""Headers, in lower case, that the writer sends itself, with the reason for refusing each."""

OWNED_PREFIX: Final = "entry-"
"""Prefix of the headers that describe the entry in the format ``data``."""

OWNED_PARAMETERS: Final = frozenset({"client_id", "client_secret", "grant_type", "scope"})
"""Parameters of a request for a token that ``parameters`` cannot hold."""

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[!-~](?:[\t -~]*[!-~])?")
_ORIGIN: Final = re.compile(r"[a-zA-Z]+://[^/?#]*")
_SECRET_NAME: Final = re.compile(
    "auth|cookie|credential|key|passw|secret|session|signature|token", re.IGNORECASE
)
_SHORTEST_SECRET: Final = 4
"""Shorter ones would be found by chance."""

Method = Literal["POST", "PUT", "PATCH", "DELETE"]


def _check_template(url: SecretStr) -> SecretStr:
    text = url.get_secret_value()
    if fields_of(text) - FIELDS:
        raise ValueError(
            "may hold the fields {namespace} and {key} and no other; write {{ and }} for braces"
        )
    if len({fill_url(text, sample, sample.encode()).origin for sample in "ab"}) > 1:
        raise ValueError("may hold fields in its path and query only")
    return url


def _check_url(url: SecretStr) -> SecretStr:
    target_of(url.get_secret_value())
    return url


def _check_proxy(url: SecretStr) -> SecretStr:
    proxy_of(url.get_secret_value())
    return url


def _check_parameters(parameters: dict[str, str]) -> dict[str, str]:
    if owned := sorted(parameters.keys() & OWNED_PARAMETERS):
        raise ValueError(f"these have settings of their own, or are fixed: {', '.join(owned)}")
    return parameters


def _check_headers(headers: dict[str, str | SecretStr]) -> dict[str, str | SecretStr]:
    names = [name.lower() for name in headers]
    if not all(_TOKEN.fullmatch(name) for name in headers):
        raise ValueError("holds an invalid header name")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"these headers are given twice: {', '.join(twice)}")
    if owned := sorted(set(names) & OWNED.keys()):
        reasons = "; ".join(f"{name}: {OWNED[name]}" for name in owned)
        raise ValueError(f"the writer sets these itself: {reasons}")
    if any(name.startswith(OWNED_PREFIX) for name in names):
        raise ValueError("headers that begin with Entry- are the writer's own")
    for name, value in headers.items():
        if not _VALUE.fullmatch(plain_value(value)):
            raise ValueError(f"the value of {name} must be printable ASCII, on one line")
    return headers


def _hide_secrets(headers: object) -> object:
    """Turn values into secrets where the header's name suggests one."""
    if not isinstance(headers, dict):
        return headers
    return {
        name: SecretStr(value)
        if isinstance(name, str) and isinstance(value, str) and _SECRET_NAME.search(name)
        else value
        for name, value in headers.items()
    }


def plain_value(value: str | SecretStr) -> str:
    """Return a header's value as it is sent."""
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def _check_op(op: str) -> str:
    if op not in OPS:
        raise ValueError(f"is not an operation; there are {', '.join(OPS)}")
    return op


class OAuth2(AdaptorConfig):
    """Access tokens by client credentials (RFC 6749)."""

    token_url: Annotated[SecretStr, AfterValidator(_check_url)]
    """The token endpoint."""

    client_id: Annotated[str, Field(min_length=1)]
    """The client's id at the endpoint."""

    client_secret: Annotated[SecretStr, Field(min_length=1)]
    """The secret that belongs to it."""

    scope: Annotated[str, Field(min_length=1)] | None = None
    """Scopes to request, separated by blanks."""

    parameters: Annotated[dict[str, str], AfterValidator(_check_parameters)] = Field(
        default_factory=dict, repr=False
    )
    """Further parameters of the request, such as ``audience``."""

    client_auth: Literal["basic", "post"] = "basic"
    """Place of client_id and client_secret: ``basic`` for the header, ``post`` for the body."""

    @property
    def target(self) -> Target:
        """The token endpoint."""
        return target_of(self.token_url.get_secret_value())


class HttpWriterConfig(AdaptorConfig):
    """Destination, content and time limits of requests."""

    url: Annotated[SecretStr, AfterValidator(_check_template)]
    """Destination of entries: ``http://`` or ``https://``, without a user or password. In path and
    query ``{namespace}`` and ``{key}`` stand for those of the entry."""

    method: Method = "POST"
    """The request's method."""

    methods: dict[Annotated[str, AfterValidator(_check_op)], Method] = Field(default_factory=dict)
    """Methods by the entry's operation, where they differ, as in ``delete: DELETE``."""

    format: Literal["entries", "lines", "data"] = "entries"
    """``entries``: an array of whole entries as JSON. ``lines``: the same, one a line.
    ``data``: a request for each entry, whose body is its data."""

    headers: Annotated[
        dict[str, str | SecretStr], BeforeValidator(_hide_secrets), AfterValidator(_check_headers)
    ] = Field(default_factory=dict, repr=False)
    """Further headers of every request, such as ``Authorization``."""

    oauth2: OAuth2 | None = None
    """Send an access token in ``Authorization``, fetched by client credentials."""

    compression: Literal["none", "gzip"] = "none"
    """Compression of bodies. ``batch_bytes`` counts them uncompressed."""

    batch_rows: Annotated[int, Field(ge=1, le=100_000)] = 500
    """Maximum entries in a request."""

    batch_bytes: Annotated[Size, Field(ge=1, le=256 * 1024**2)] = 1024**2
    """Maximum bytes in a request's body. A larger entry has a request of its own."""

    timeout: Annotated[Duration, Field(gt=0, le=3600)] = 10.0
    """Time limit of a whole request. At most a quarter of the route's slice_timeout."""

    retry_after_max: Annotated[Duration, Field(ge=0, le=86_400)] = 300.0
    """Longest time for which a Retry-After of the receiver is followed."""

    ca_file: LocalPath | None = None
    """Certificates (PEM) to trust for https, in place of the system's."""

    cert_file: LocalPath | None = None
    """Certificate (PEM) to present to an https receiver, with the chain to its authority."""

    key_file: LocalPath | None = None
    """Private key (PEM) of ``cert_file``."""

    key_password: Annotated[SecretStr, Field(min_length=1, max_length=1024)] | None = None
    """Password of ``key_file``."""

    proxy: Annotated[SecretStr, AfterValidator(_check_proxy)] | None = None
    """Proxy on the way to the receiver and the token endpoint: ``http://user:password@host:port``.
    """

    @model_validator(mode="after")
    def _check_effects(self) -> Self:
        for name in ("ca_file", "cert_file"):
            if getattr(self, name) is not None and not self.wants_tls:
                raise ValueError(
                    f"has a {name}, and a url that begins with http:// and not https://"
                )
        if self.format == "data" and {"batch_rows", "batch_bytes"} & self.model_fields_set:
            raise ValueError("has batch_rows or batch_bytes, but sends one entry a request")
        return self

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file go together")
        if self.key_password is not None and self.key_file is None:
            raise ValueError("key_password needs key_file")
        if self.oauth2 is not None and "authorization" in map(str.lower, self.headers):
            raise ValueError("has oauth2, which sends Authorization: leave that out of headers")
        return self

    @property
    def target(self) -> Target:
        """Destination of the requests. With fields in the URL, the path of an example."""
        return fill_url(self.url.get_secret_value(), "namespace", b"key")

    @property
    def wants_tls(self) -> bool:
        """Whether the receiver or the token endpoint uses TLS."""
        targets = [self.target, *([self.oauth2.target] if self.oauth2 else [])]
        return any(target.scheme == "https" for target in targets)

    @property
    def parsed_proxy(self) -> Proxy | None:
        """The proxy on the way."""
        return None if self.proxy is None else proxy_of(self.proxy.get_secret_value())


def secrets_of(config: HttpWriterConfig) -> tuple[str, ...]:
    """Return the secrets to redact where the receiver repeats them, the longest first."""
    url = config.url.get_secret_value()
    found = {url}
    for literal, *_ in Formatter().parse(_ORIGIN.sub("", url)):
        found.update((literal, unquote(literal)))
    for value in config.headers.values():
        if isinstance(value, SecretStr):
            found.update(_secret_parts(plain_value(value)))
    if (proxy := config.parsed_proxy) is not None:
        found.update(_secret_parts(basic_credentials(proxy.user, proxy.password)))
    if (oauth2 := config.oauth2) is not None:
        found.update(_oauth2_secrets(oauth2))
    return longest_first(found)


def longest_first(secrets: Iterable[str]) -> tuple[str, ...]:
    """Return *secrets* without those that would be found by chance, the longest first."""
    return tuple(
        sorted((each for each in secrets if len(each) >= _SHORTEST_SECRET), key=_longest_key)
    )


def _oauth2_secrets(oauth2: OAuth2) -> Iterator[str]:
    secret = oauth2.client_secret.get_secret_value()
    yield from (secret, quote_plus(secret), oauth2.token_url.get_secret_value())
    yield from _secret_parts(basic_credentials(quote_plus(oauth2.client_id), quote_plus(secret)))
    for name, value in oauth2.parameters.items():
        if _SECRET_NAME.search(name):
            yield from (value, quote_plus(value))


def _secret_parts(value: str) -> Iterator[str]:
    """Yield a secret value, the part behind its scheme, and a password inside that."""
    scheme, _, rest = value.partition(" ")
    yield value
    yield rest.strip()
    if scheme.lower() == "basic":
        with suppress(ValueError):
            decoded = base64.b64decode(rest.strip()).decode()
            yield decoded
            yield decoded.partition(":")[2]


def _longest_key(text: str) -> tuple[int, str]:
    return -len(text), text
