"""The secrets of a pipeline, and their redaction in all output (Invariant 20).

Adaptors and drivers may repeat a setting in an error. Every text is therefore searched for the
secret values themselves before it leaves the process.
"""

from __future__ import annotations

import base64
import json
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote, quote_plus, unquote

from pydantic import BaseModel, SecretBytes, SecretStr

from transporter.pipeline.problems import SECRETIVE, TELLING, has_secret_name, spellings
from transporter.pipeline.validation_errors import is_secret

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from transporter.pipeline.yaml_document import Document

HIDDEN: Final = "***"
_SHORTEST: Final = 4
"""Shorter values would match by chance."""
_LONG: Final = 8
"""Letters of a part of a secret that hardly anything else has in common with it."""
_ARMOR: Final = "-----"
"""The beginning of the first and the last line of a PEM file, which are not secrets."""
_IN_TEXT: Final = (
    re.compile(r"://[^/@\s:]*:([^@\s]+)@"),
    re.compile(r"passw(?:or)?d\s*=\s*'((?:[^'\\]|\\.)*)'", re.IGNORECASE),
    re.compile(r"passw(?:or)?d\s*=\s*([^'\s;&]+)", re.IGNORECASE),
)
"""Passwords inside of URLs, connection strings and JAAS lines."""


@dataclass(frozen=True, slots=True)
class Secrets:
    """Values that must not be shown. Picklable. Its repr has none of them."""

    values: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, values: Iterable[str]) -> Self:
        """Keep *values*, without those that are too short, the longest first."""
        kept = {each for each in values if len(each) >= _SHORTEST}
        return cls(tuple(sorted(kept, key=lambda each: (-len(each), each))))

    def __or__(self, other: Secrets) -> Secrets:
        """Return the secrets of both."""
        return Secrets.of([*self.values, *other.values])

    def hide(self, text: str) -> str:
        """Return *text* with every secret redacted."""
        for each in self.values:
            text = text.replace(each, HIDDEN)
        return text

    def hide_all(self, details: dict[str, Any]) -> dict[str, Any]:
        """Return *details* with every secret redacted from those that are text."""
        return {
            name: self.hide(value) if isinstance(value, str) else value
            for name, value in details.items()
        }

    def hide_in(self, error: BaseException | None) -> None:
        """Redact every secret in *error* and in all of its causes, tracebacks included."""
        seen: set[int] = set()
        while error is not None and id(error) not in seen:
            seen.add(id(error))
            error.args = tuple(
                self.hide(each) if isinstance(each, str) else each for each in error.args
            )
            # Our errors keep their arguments as attributes as well.
            error.__dict__.update(self.hide_all(error.__dict__))
            # The system's keep paths apart, and show them.
            for name in ("filename", "filename2") if isinstance(error, OSError) else ():
                if isinstance(path := getattr(error, name), str | bytes | os.PathLike):
                    setattr(error, name, self.hide(os.fsdecode(path)))
            if notes := getattr(error, "__notes__", None):
                notes[:] = [self.hide(str(each)) for each in notes]
            self.hide_in(error.__context__)
            error = error.__cause__


def looks_secret(name: str, value: str) -> bool:
    """Return whether a setting of this *name* and *value* seems to be or contain a secret."""
    return bool(TELLING.search(name)) or any(each.search(value) for each in _IN_TEXT)


def secrets_of(document: Document, config: object) -> Secrets:
    """Return the secrets of a pipeline file, and of the *config* of one of its adaptors.

    A secret is a setting that its adaptor declares as one, a setting or a variable with a
    typical name, and every password inside another text.
    """
    return secrets_in(
        [*document.known_secrets, *_secrets_by_name(document, document.root, ())], config
    )


def secrets_in(values: Iterable[str], config: object) -> Secrets:
    """Return as secrets the *values* of files, and the secrets that *config* declares."""
    found = [*values, *(_declared_secrets(config) if isinstance(config, BaseModel) else ())]
    return Secrets.of(form for each in found if len(each) >= _SHORTEST for form in _forms(each))


def _forms(secret: str) -> Iterator[str]:
    """Yield *secret* as it is, and as drivers, URLs, JSON and HTTP may write it."""
    plain = {secret, unquote(secret)}
    for each in plain:
        yield from (*spellings(each), json.dumps(each)[1:-1])
        yield from (json.dumps(each, ensure_ascii=False)[1:-1], quote(each), quote(each, safe=""))
        yield from (quote_plus(each), each.lower())  # as servers fold names
        yield from _base64_forms(each.encode(errors="surrogateescape"))
    if len(lines := secret.split()) > 1:
        # A key of several lines is often shown on one, or line by line.
        yield from ("".join(lines), " ".join(lines))
        yield from (
            each
            for each in secret.splitlines()
            if len(each) >= _LONG and not each.startswith(_ARMOR)
        )


def _base64_forms(secret: bytes) -> Iterator[str]:
    """Yield *secret* in base64, alone and at each alignment within an encoded text."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        whole = encode(secret).decode()
        yield from (whole, whole.rstrip("="))
        for before in range(3):
            # The letters that depend on nothing but the secret.
            first, end = -(-before * 8 // 6), (before + len(secret)) * 8 // 6
            inner = encode(bytes(before) + secret).decode()[first:end]
            if len(inner) >= _LONG:
                yield inner


def _secrets_by_name(document: Document, value: Any, path: tuple[str | int, ...]) -> Iterator[str]:  # noqa: ANN401 - plain values
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for step, each in pairs:
            yield from _secrets_by_name(document, each, (*path, step))
    elif value is not None and not isinstance(value, bool):
        wanted = SECRETIVE if path in document.substituted else TELLING
        if has_secret_name(path, wanted):
            yield str(value)
        for pattern in _IN_TEXT:
            yield from pattern.findall(str(value))


def _declared_secrets(config: BaseModel) -> Iterator[str]:
    for name, info in type(config).model_fields.items():
        value = getattr(config, name, None)
        if isinstance(value, BaseModel):
            yield from _declared_secrets(value)
        elif is_secret(info):
            yield from _secret_texts(value)


def _secret_texts(value: object) -> Iterator[str]:
    match value:
        case SecretStr():
            yield value.get_secret_value()
        case SecretBytes():
            yield value.get_secret_value().decode(errors="replace")
        case str():
            yield value
        case dict():
            # Options of a driver, most of which are not secrets: their names decide.
            secrets = [each for each in value.values() if isinstance(each, SecretStr | SecretBytes)]
            for each in secrets:
                yield from _secret_texts(each)
        case list() | tuple():
            for each in value:
                yield from _secret_texts(each)
