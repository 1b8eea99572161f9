"""Settings of the HTTP writer."""

from __future__ import annotations

import base64
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple, Self
from urllib.parse import unquote

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator
from urllib3.exceptions import LocationParseError
from urllib3.util import parse_url

from transporter.adaptor import AdaptorConfig, Duration, LocalPath, Size

if TYPE_CHECKING:
    from collections.abc import Iterator

OWNED: Final = {
    "connection": "the writer keeps its connection open",
    "content-encoding": "the body is sent as it is",
    "content-length": "the body decides",
    "content-type": "the format decides",
    "expect": "the writer sends the body at once",
    "host": "the URL decides",
    "idempotency-key": "the entries decide",
    "transfer-encoding": "the body decides",
}
"""Headers, in lower case, that the writer sends itself, and why each is refused."""

OWNED_PREFIX: Final = "entry-"
"""Headers that begin so tell of the entry in the format ``data``."""

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[!-~](?:[\t -~]*[!-~])?")
_BLANK: Final = re.compile(r"[\x00-\x20\x7f]")
_TELLING: Final = re.compile(
    "auth|cookie|credential|key|passw|secret|session|signature|token", re.IGNORECASE
)
_SHORTEST_SECRET: Final = 4
"""Shorter ones would be found by chance."""

_PORTS: Final = {"http": 80, "https": 443}


class Target(NamedTuple):
    """Where a request goes: an origin, and the path with its query at it."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def origin(self) -> tuple[str, str, int]:
        """What must be equal for credentials to be sent."""
        return self.scheme, self.host.lower(), self.port

    @property
    def place(self) -> str:
        """Host and port for people; a path or query may hold a secret, and is left out."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def target_of(url: str) -> Target:
    """Return where *url* leads.

    Raise :class:`ValueError`, which does not repeat it, when it is no absolute
    HTTP URL, or holds a user, a password or a fragment.
    """
    try:
        found = parse_url(url)
    except LocationParseError as error:
        raise ValueError("is not a URL") from error
    if found.scheme not in _PORTS or not found.host or _BLANK.search(url):
        raise ValueError("must begin with http:// or https://, a host, and hold no blanks")
    if found.auth is not None:
        raise ValueError("may hold no user and password; use the header Authorization")
    if found.fragment is not None:
        raise ValueError("may hold no fragment: it is never sent")
    port = _PORTS[found.scheme] if found.port is None else found.port
    if not port:
        raise ValueError("may not name port 0")
    return Target(found.scheme, found.host.strip("[]"), port, found.request_uri)


def _url(url: SecretStr) -> SecretStr:
    target_of(url.get_secret_value())
    return url


def _headers(headers: dict[str, str | SecretStr]) -> dict[str, str | SecretStr]:
    names = [name.lower() for name in headers]
    if not all(_TOKEN.fullmatch(name) for name in headers):
        raise ValueError("holds a name that no header may have")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"these headers are given twice: {', '.join(twice)}")
    if owned := sorted(set(names) & OWNED.keys()):
        reasons = "; ".join(f"{name}: {OWNED[name]}" for name in owned)
        raise ValueError(f"the writer sets these itself: {reasons}")
    if any(name.startswith(OWNED_PREFIX) for name in names):
        raise ValueError("headers that begin with Entry- are the writer's own")
    for name, value in headers.items():
        if not _VALUE.fullmatch(plain(value)):
            raise ValueError(f"the value of {name} must be printable ASCII, on one line")
    return headers


def _hidden(headers: object) -> object:
    """Make secrets of the values whose header's name says that they are some."""
    if not isinstance(headers, dict):
        return headers
    return {
        name: SecretStr(value)
        if isinstance(name, str) and isinstance(value, str) and _TELLING.search(name)
        else value
        for name, value in headers.items()
    }


def plain(value: str | SecretStr) -> str:
    """Return a header's value as it is sent."""
    return value.get_secret_value() if isinstance(value, SecretStr) else value


class HttpWriterConfig(AdaptorConfig):
    """Where requests go, what is in them, and how long they may take."""

    url: Annotated[SecretStr, AfterValidator(_url)]
    """Where entries are sent: ``http://`` or ``https://``, without a user or password."""

    method: Literal["POST", "PUT", "PATCH"] = "POST"
    """The request's method."""

    format: Literal["entries", "lines", "data"] = "entries"
    """``entries``: an array of whole entries as JSON. ``lines``: the same, one a line.
    ``data``: a request for each entry, whose body is its data."""

    headers: Annotated[
        dict[str, str | SecretStr], BeforeValidator(_hidden), AfterValidator(_headers)
    ] = Field(default_factory=dict, repr=False)
    """Further headers of every request, such as ``Authorization``."""

    batch_rows: Annotated[int, Field(ge=1, le=100_000)] = 500
    """Most entries in a request."""

    batch_bytes: Annotated[Size, Field(ge=1, le=256 * 1024**2)] = 1024**2
    """Most bytes in a request's body; a larger entry has a request of its own."""

    timeout: Annotated[Duration, Field(gt=0, le=3600)] = 10.0
    """How long a request may take, all in all; at most a quarter of the route's slice_timeout."""

    retry_after_max: Annotated[Duration, Field(ge=0, le=86_400)] = 300.0
    """Longest time that a Retry-After of the receiver is obeyed."""

    ca_file: LocalPath | None = None
    """Certificates (PEM) to trust for https, in place of the system's."""

    @model_validator(mode="after")
    def _nothing_without_effect(self) -> Self:
        if self.ca_file is not None and self.target.scheme == "http":
            raise ValueError("has a ca_file, and a url that begins with http:// and not https://")
        if self.format == "data" and {"batch_rows", "batch_bytes"} & self.model_fields_set:
            raise ValueError("has batch_rows or batch_bytes, and a format of one entry a request")
        return self

    @property
    def target(self) -> Target:
        """Where the requests go."""
        return target_of(self.url.get_secret_value())


def secrets_of(config: HttpWriterConfig) -> tuple[str, ...]:
    """Return what the receiver may repeat and nobody should see, the longest first."""
    path = config.target.path
    found = {config.url.get_secret_value(), path, unquote(path)}
    for value in config.headers.values():
        if isinstance(value, SecretStr):
            found.update(_parts(plain(value)))
    return tuple(sorted((each for each in found if len(each) >= _SHORTEST_SECRET), key=_longest))


def _parts(value: str) -> Iterator[str]:
    """Yield a secret value, what follows its scheme, and a password that is in that."""
    scheme, _, rest = value.partition(" ")
    yield value
    yield rest.strip()
    if scheme.lower() == "basic":
        with suppress(ValueError):
            decoded = base64.b64decode(rest.strip()).decode()
            yield decoded
            yield decoded.partition(":")[2]


def _longest(text: str) -> tuple[int, str]:
    return -len(text), text
