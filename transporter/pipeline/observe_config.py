"""The section ``observe`` of a pipeline file: endpoint, tokens, tracing, console."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, PlainValidator, SecretStr, model_validator

from transporter.pipeline.problems import InvalidPipeline
from transporter.pipeline.route_options import Model, PositiveDuration
from transporter.pipeline.secret_files import Template, UnreadableSecret
from transporter.pipeline.validation_errors import Section, validate
from transporter.pipeline.yaml_document import read
from transporter.units import FOLDER, LocalPath

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transporter.pipeline.yaml_document import KeyPath

_SECTION: Final = "observe"

_ADDRESS: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9.-]+)):([0-9]{1,5})")
_LAST_PORT: Final = 65535
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]{16,}=*")
"""A bearer token by RFC 6750, long enough to be unguessable."""
_PRINTABLE: Final = re.compile(r"[!-~]+")
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[!-~](?:[\t -~]*[!-~])?")
_HOST_NAME: Final = re.compile(
    r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]"
)
_BASE_PATH: Final = re.compile(r"(?:/[A-Za-z0-9._~-]+)+")
DEFAULT_CONSOLE: Final = ("127.0.0.1", 9465)


class ListenAddress(NamedTuple):
    """The address to listen on. Port 0 is any free port."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """True if only this host can reach it."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host.lower() == "localhost"


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token, as the file has it: one that is in a file of its own is read at each use."""

    template: Template
    first: str = field(repr=False, compare=False)

    def current_value(self) -> str | None:
        """Return the current token, or ``None`` while its file cannot be used."""
        if not self.template.files:
            return self.first
        try:
            found, _ = self.template.read()
        except UnreadableSecret:
            return None
        return found if _TOKEN.fullmatch(found) else None


class TlsConfig(Model):
    """The files of a certificate, with its chain, and of its key, as PEM."""

    cert: LocalPath
    key: LocalPath


def _parse_listen(value: object) -> ListenAddress | None:
    if value is None or isinstance(value, ListenAddress):
        return value
    if value in ("off", False):
        return None
    found = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if found is None or int(found[3]) > _LAST_PORT:
        raise ValueError('must be an address and a port, such as "127.0.0.1:9464", or off')
    return ListenAddress(found[1] or found[2], int(found[3]))


def _parse_console(value: object) -> ListenAddress:
    found = _parse_listen(value)
    if found is None:
        raise ValueError('must be an address and a port, such as "127.0.0.1:9465"')
    return found


def _parse_token(value: object) -> Token | None:
    if value is None:
        return None
    if isinstance(value, str):
        value = Token(Template((value,)), value)
    if not isinstance(value, Token) or not _TOKEN.fullmatch(value.first):
        raise ValueError(
            "must be 16 or more letters, digits or any of ._~+/- (= at its end), such as "
            "'openssl rand -hex 32' makes"
        )
    return value


def _check_collector(endpoint: SecretStr) -> SecretStr:
    url = endpoint.get_secret_value()
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not _PRINTABLE.fullmatch(url):
        raise ValueError(
            "must be the URL of a collector's OTLP/HTTP traces, such as "
            '"http://127.0.0.1:4318/v1/traces"'
        )
    if "@" in parts.netloc:
        raise ValueError("may hold no user and password; use the header Authorization")
    return endpoint


def _check_headers(headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
    for name, value in headers.items():
        if not _HEADER.fullmatch(name):
            raise ValueError("holds a name that no header may have")
        if not _VALUE.fullmatch(value.get_secret_value()):
            raise ValueError(f"the value of {name} must be printable ASCII, on one line")
    return headers


class TracingConfig(Model):
    """The endpoint for spans of single entries, and the share of entries."""

    endpoint: Annotated[SecretStr, AfterValidator(_check_collector)]
    headers: Annotated[dict[str, SecretStr], AfterValidator(_check_headers)] = Field(
        default={}, repr=False
    )
    sample: Annotated[float, Field(ge=0, le=1)] = 0.01
    service_name: Annotated[str, Field(min_length=1)] = "transporter"
    ca_file: LocalPath | None = None


Role = Literal["viewer", "operator"]
"""A role in the console. Only operators change anything; by default only they see payloads."""


class ConsoleToken(Model):
    """A bearer token of the console, with the name and the role of its holder."""

    name: Annotated[str, Field(min_length=1, max_length=100)]
    token: Annotated[Token, PlainValidator(_parse_token)] = Field(repr=False)
    role: Role = "viewer"


def _check_header_name(name: str) -> str:
    if not _HEADER.fullmatch(name):
        raise ValueError("is a name that no header may have")
    return name


HeaderName = Annotated[str, AfterValidator(_check_header_name)]


class ConsoleProxy(Model):
    """A proxy that logs people in, and names them in headers of each request."""

    trusted: Annotated[tuple[IPv4Network | IPv6Network, ...], Field(alias="from", min_length=1)]
    user: HeaderName = "X-Forwarded-User"
    groups: HeaderName = "X-Forwarded-Groups"
    operators: tuple[str, ...] = ()


def _check_host_name(host: str) -> str:
    if not _HOST_NAME.fullmatch(host):
        raise ValueError("must be a host name without a port, such as console.example.org")
    return host.lower()


def _check_base_path(path: str) -> str:
    if path and not _BASE_PATH.fullmatch(path):
        raise ValueError("must be a path without a slash at its end, such as /transporter")
    return path


class ConsoleAccess(Model):
    """The people and programs that may use the console, and the view that they get."""

    read_only: bool = False
    payloads: Literal["all", "operators", "nobody"] = "operators"
    tokens: tuple[ConsoleToken, ...] = ()
    proxy: ConsoleProxy | None = None
    hosts: tuple[Annotated[str, AfterValidator(_check_host_name)], ...] = ()
    base_path: Annotated[str, AfterValidator(_check_base_path)] = ""

    @property
    def is_protected(self) -> bool:
        """True if other hosts have a way to log in."""
        return bool(self.tokens) or self.proxy is not None


class ConsoleConfig(Model):
    """The keys of ``observe`` that the console uses."""

    console: Annotated[ListenAddress, PlainValidator(_parse_console)] = ListenAddress(
        *DEFAULT_CONSOLE
    )
    console_access: ConsoleAccess = ConsoleAccess()

    @model_validator(mode="after")
    def _check_console(self) -> Self:
        if not self.console.is_loopback and not self.console_access.is_protected:
            raise ValueError(
                "console: other hosts can reach this address, so console_access needs tokens or "
                "a proxy"
            )
        return self


class ObserveConfig(ConsoleConfig):
    """The endpoint of metrics and health, its access, and the time after which a route is stuck."""

    listen: Annotated[ListenAddress | None, PlainValidator(_parse_listen)] = ListenAddress(
        "127.0.0.1", 9464
    )
    tls: TlsConfig | None = None
    token: Annotated[Token | None, PlainValidator(_parse_token)] = None
    insecure: bool = False
    unready_after: PositiveDuration = 30.0
    tracing: TracingConfig | None = None

    @model_validator(mode="after")
    def _check_protection(self) -> Self:
        safe = self.listen is None or self.listen.is_loopback or (self.tls and self.token)
        if not safe and not self.insecure:
            raise ValueError(
                "listen: other hosts can reach this address, so it needs tls and token, or "
                "insecure: true in a network of trusted hosts"
            )
        if safe and self.insecure:
            raise ValueError("insecure: changes nothing here; leave it out")
        return self


def read_console_settings(path: Path, environ: Mapping[str, str]) -> ConsoleConfig:
    """Return the console's settings of the pipeline file at *path*, without validating the rest.

    So the console starts on a file that the engine refuses, and needs no variables but its own.

    Raise :class:`ConfigError` as :func:`~transporter.pipeline.config.load` does.
    """
    document = read(path, environ, only=_is_ours)
    root = document.root if isinstance(document.root, dict) else {}
    observe = document.as_mapping((_SECTION,), root.get(_SECTION) or None)
    ours = {key: value for key, value in observe.items() if key in ConsoleConfig.model_fields}
    file = Path(os.path.abspath(path))  # noqa: PTH100 - as in load()
    section = Section(document, (_SECTION,))
    found, problems = validate(ConsoleConfig, ours, section, {FOLDER: file.parent})
    if found is None:
        raise InvalidPipeline(*problems)
    return found


def _is_ours(key: KeyPath) -> bool:
    return key[:1] == (_SECTION,) and len(key) > 1 and key[1] in ConsoleConfig.model_fields
