"""Routes of a pipeline that do not fit those with offsets in its log: renamed, or missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transporter.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from transporter.pipeline.config import Pipeline
    from transporter.pipeline.yaml_document import KeyPath


def refuse_changed_routes(pipeline: Pipeline, declared: Sequence[str]) -> None:
    """Refuse a pipeline whose routes do not fit the *declared* ones, which have offsets in its log.

    :raises ConfigError: with the commands and the setting that help.
    """
    for _, text in changed_routes_problems(pipeline, declared):
        raise ConfigError(text, str(pipeline.file))


def changed_routes_problems(
    pipeline: Pipeline, declared: Sequence[str]
) -> Iterator[tuple[KeyPath, str]]:
    """Yield what keeps a start from going on beside the *declared* routes, with the place.

    That is a new route that may be one of them under another name, which would deliver everything
    again; a route with a ``start`` is meant to be new. And where a source waits for delivery, it is
    a route that is left out: the source would be acknowledged without it, but it may come back.
    """
    names = {route.name for route in pipeline.routes}
    missing = [name for name in declared if name not in names]
    if not missing:
        return
    first, log = missing[0], pipeline.log.dir
    for index, route in enumerate(pipeline.routes):
        if route.name not in declared and not route.has_start:
            text = (
                f"route {route.name} is new to {log}, which has offset logs of routes that the "
                f"pipeline does not declare: {', '.join(missing)}. If it was renamed, run "
                f"'transporter offsets rename {pipeline.file} {first} {route.name}', which keeps "
                "its position, while no engine runs; if it is new, set its start (start: earliest, "
                "for all entries)"
            )
            yield ("routes", index, "name"), text
    if pipeline.waits_for_delivery:
        text = (
            f"route {first} has an offset log in {log} and is not in the pipeline. A source that "
            "waits for delivery would be acknowledged without this route, which would then lose "
            "the entries logged meanwhile. Add the route to the pipeline again, or remove its "
            f"offset log with 'transporter route forget {pipeline.file} {first}' while no engine "
            "runs"
        )
        yield ("routes",), text
