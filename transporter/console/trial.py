"""The trial of one entry: the messages that a route would make of it now. Changes nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from flask import g, render_template

from transporter.console.act_pages import sent_values
from transporter.console.answers import error_json, result_json, wants_json
from transporter.console.child import run_command
from transporter.console.formats import pretty_data
from transporter.errors import ActionRefused

if TYPE_CHECKING:
    from flask import Flask

    from transporter.console.act_pages import ActForms
    from transporter.console.answers import Answer
    from transporter.console.pages import Pages
    from transporter.console.state import Console


class Trials:
    """Tries entries by ``transporter dry-run``, in a process with a deadline.

    It runs the steps of the pipeline file, which are the user's own code. So each trial is asked
    for by an operator's form, which is good for several, and none is automatic.
    """

    def __init__(self, app: Flask, console: Console, pages: Pages, forms: ActForms) -> None:
        """Add the page to *app*. Rights and forms are those of *forms*."""
        self._console, self._pages, self._forms = console, pages, forms
        app.add_url_rule(
            "/p/<log>/log/<int:offset>/try", "try_entry", self.try_entry, methods=["POST"]
        )

    def try_entry(self, log: str, offset: int) -> Answer:
        """Show what the route in the form would make of the entry, by the file as it is now."""
        source = self._pages.source(log)
        reason = self._console.guard.refusal_to_act(g.identity)
        if not reason and not self._pages.may_see_payloads():
            reason = "nobody may see payloads here"
        if reason:
            return error_json("Refused", f"Nothing was tried: {reason}.", 1), 403
        values = sent_values()
        self._forms.find_form(values)
        route, file = values.get("route", ""), source.file
        if file is None:
            raise ActionRefused("nobody knows the pipeline file of this log, which has the steps")
        place = str(offset)
        with self._forms.slot():
            found = run_command("dry-run", str(file), route, "--from", place, "--to", place)
        tried = found.get(route)
        if not isinstance(tried, list) or not tried:
            why = found.get("message") or (tried or {}).get("unknown")
            raise ActionRefused(str(why or f"the log has no entry {offset} to try"))
        if wants_json():
            return result_json(found)
        return render_template(
            "trial.html",
            offset=offset,
            route=route,
            file=file,
            tried=tried[0],
            made=[_shown(each) for each in tried[0]["output"] or ()],
            **self._pages.frame(source, source.look()),
        )


def _shown(output: dict[str, Any]) -> dict[str, Any]:
    """Return a message, or the row for a sink of Spark's, with its data as text."""
    if "row" in output:
        text = pretty_data(json.dumps(output["row"], ensure_ascii=False).encode())
        return {"namespace": "a row", "op": "", "key": None, "headers": [], "data": text}
    data = output.get("data")
    if isinstance(data, dict):  # not UTF-8
        return {**output, "data": f"base64: {data['base64']}"}
    return {**output, "data": None if data is None else pretty_data(data.encode())}
