"""Answers in two forms: a page, or the JSON of the command that shows the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flask import Response, jsonify, render_template, request

if TYPE_CHECKING:
    from werkzeug.wrappers import Response as BaseResponse

    Answer = Response | BaseResponse | str | tuple[Response | str, int]


def wants_json() -> bool:
    """Return whether the client prefers JSON to a page."""
    best = request.accept_mimetypes.best_match(["text/html", "application/json"])
    return best == "application/json"


def here() -> str:
    """Return the path of this page, as links have it: below the path of a proxy."""
    return request.script_root + request.path


def is_live() -> bool:
    """Return whether only the part of a page is wanted that changes by itself."""
    return request.args.get("part") == "live"


def render(page: str, result: object, /, **values: Any) -> Answer:  # noqa: ANN401 - what a template takes
    """Return *result* as JSON, or *values* as the template *page* or its live part."""
    if wants_json():
        return result_json(result)
    return render_template(f"live/{page}" if is_live() else page, **values)


def result_json(result: object, **more: object) -> Response:
    """Return *result* as the commands do with ``--json``, with *more* about how it was found."""
    return jsonify({"ok": True, "result": result, **more})


def error_json(kind: str, message: str, exit_code: int) -> Response:
    """Return an error as the commands do with ``--json``."""
    error = {"type": kind, "message": message, "exit_code": exit_code}
    return jsonify({"ok": False, "error": error})
