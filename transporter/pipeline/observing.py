"""What a pipeline file may say about how its engine is watched."""

from __future__ import annotations

import re
from typing import Annotated, Final, NamedTuple

from pydantic import PlainValidator

from transporter.pipeline.options import Model, PositiveDuration

_ADDRESS: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9.-]+)):([0-9]{1,5})")
_LAST_PORT: Final = 65535


class Address(NamedTuple):
    """Where to listen; port 0 takes any that is free."""

    host: str
    port: int


def _listen(value: object) -> Address | None:
    if value is None or isinstance(value, Address):
        return value
    if value in ("off", False):
        return None
    found = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if found is None or int(found[3]) > _LAST_PORT:
        raise ValueError('must be an address and a port, such as "127.0.0.1:9464", or off')
    return Address(found[1] or found[2], int(found[3]))


class ObserveConfig(Model):
    """Where metrics and health are served, and how long a route may get nowhere."""

    listen: Annotated[Address | None, PlainValidator(_listen)] = Address("127.0.0.1", 9464)
    unready_after: PositiveDuration = 30.0
