"""Conversion of a query's result cells into JSON values."""

from __future__ import annotations

import math
from datetime import date
from functools import singledispatch
from typing import Any

from transporter.bytes_as_json import text_or_base64


@singledispatch
def to_json_value(cell: Any) -> Any:  # noqa: ANN401 - any type of column
    """Return *cell* as a JSON value, with bytes represented as everywhere in transporter."""
    return cell if cell is None or isinstance(cell, str | int | float) else str(cell)


@to_json_value.register(float)
def _(cell: float) -> Any:  # noqa: ANN401 - see plain()
    """Return *cell*, or the name of what JSON has no number for."""
    if math.isfinite(cell):
        return cell
    return "NaN" if math.isnan(cell) else f"{'-' if cell < 0 else ''}Infinity"


@to_json_value.register(bytes)
@to_json_value.register(bytearray)
def _(cell: bytes | bytearray) -> Any:  # noqa: ANN401 - see plain()
    return text_or_base64(bytes(cell))


@to_json_value.register(dict)
def _(cell: dict[Any, Any]) -> Any:  # noqa: ANN401 - see plain()
    return {str(to_json_value(name)): to_json_value(value) for name, value in cell.items()}


@to_json_value.register(list)
def _(cell: list[Any]) -> Any:  # noqa: ANN401 - see plain()
    return [to_json_value(value) for value in cell]


@to_json_value.register(date)
def _(cell: date) -> Any:  # noqa: ANN401 - see plain()
    return cell.isoformat()
