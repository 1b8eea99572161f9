"""``sql``: one query over the entries of a slice. It runs on Spark, and only there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import AfterValidator, Field, model_validator

from transporter.errors import ConfigError
from transporter.pipeline.route_options import Model

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema

    from transporter.pipeline.steps.step import Step

SQL: Final = "sql"
ON_SPARK_ONLY: Final = (
    "a sql step runs on Spark only, which this command does not start; "
    "use 'transporter dry-run' to see the result of the route"
)


def _check_query(text: str) -> str:
    if "entries" not in text.lower():
        raise ValueError("does not read the table entries: write SELECT … FROM entries")
    return text


class SqlSettings(Model):
    """A query over the table ``entries``, whose result takes their place.

    ``schema`` (Spark's DDL) makes ``data`` a struct of these fields. Without it ``key`` and
    ``data`` are text, or with ``bytes`` stay bytes.
    """

    query: Annotated[str, Field(min_length=1), AfterValidator(_check_query)]
    schema_: Annotated[str, Field(min_length=1)] | None = Field(default=None, alias="schema")
    bytes_: bool = Field(default=False, alias="bytes")

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Return the schema, with the query alone, as text, as an alternative."""
        found = handler.resolve_ref_schema(handler(schema))
        mapping = {**found}
        found.clear()
        found["anyOf"] = [{"type": "string", "minLength": 1}, mapping]
        return found

    @model_validator(mode="before")
    @classmethod
    def _accept_text(cls, value: Any) -> Any:  # noqa: ANN401 - whatever the file has
        return {"query": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_shape(self) -> SqlSettings:
        if self.schema_ is not None and self.bytes_:
            raise ValueError("takes schema or bytes, not both: a schema reads data as JSON text")
        return self


def sql(_settings: SqlSettings, _folder: Path) -> Step:
    """Refuse: a query cannot be tried on a batch in Python."""
    raise ConfigError(ON_SPARK_ONLY)
