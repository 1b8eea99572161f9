"""Validation and conversion of the defaults in a settings class."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticUndefined

from transporter.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo


def validate_defaults(model: type[BaseModel]) -> None:
    """Replace each default of *model* by its validated value.

    A default of ``None`` stays as it is, and so does a default from a factory.

    Raises:
        ConfigError: a default does not fit its field. The text names class and field.

    """
    changed = False
    for name, field in model.__pydantic_fields__.items():
        changed |= _validate_default(f"{model.__qualname__}.{name}", field)
    if changed:
        model.model_rebuild(force=True)


def field_annotation(field: FieldInfo) -> Any:  # noqa: ANN401 - any type that a model declares
    """Return the type of *field* with its metadata."""
    metadata = field.metadata
    return Annotated[(field.annotation, *metadata)] if metadata else field.annotation


def _validate_default(name: str, field: FieldInfo) -> bool:
    """Validate the default of the *field* called *name*, and return whether that changed it."""
    default = field.default
    plain = field.annotation is type(default) and not field.metadata
    if plain or default is None or default is PydanticUndefined:
        return False
    try:
        value = TypeAdapter(field_annotation(field)).validate_python(default)
    except ValidationError as error:
        reason = error.errors(include_input=False, include_url=False)[0]["msg"]
        reason = reason.removeprefix("Value error, ").replace("Input should", "should", 1)
        raise ConfigError(f"{name}: its default {reason}") from None
    if isinstance(value, Path):
        # A relative path starts in the pipeline file's folder, which is not known here.
        changed, field.validate_default = not field.validate_default, True
        return changed
    field.default = value
    return value != default or type(value) is not type(default)
