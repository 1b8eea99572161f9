"""The forms of acts: each is shown with its effect, and sent once.

A GET shows what will happen and changes nothing. A POST carries the request out through the
engine, or under the log's lock without one, on behalf of the sender. So the audit file names the
person whatever becomes of the console.
"""

from __future__ import annotations

import shlex
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from flask import g, redirect, render_template, request, url_for

from transporter.audit import OnBehalfOf
from transporter.console.acts import ACTS, parse_ranges, ranges_text
from transporter.console.answers import error_json, result_json, wants_json
from transporter.console.child import run_command
from transporter.console.readings import outline_of, read_parked_page
from transporter.console.state import FormGrant, Outcome
from transporter.console.views.parked import parked_rows
from transporter.console.views.privacy import parked_without_payload, result_without_texts
from transporter.control.client import EngineEnded, perform
from transporter.control.request_arguments import command_words
from transporter.control.requests import Forget, Reload, Replay, RetryParked, SkipParked
from transporter.errors import ActionRefused, ConfigError, EngineUnreachable, OffsetRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from flask import Flask

    from transporter.console.acts import Act, Values
    from transporter.console.answers import Answer
    from transporter.console.pages import Pages
    from transporter.console.sources import LogSource
    from transporter.console.state import Console
    from transporter.control.requests import Request

ANSWER: Final = 45.0
"""Seconds for an engine's answer: a skip waits up to 30 for the slice that the route is at."""
AT_ONCE: Final = 4
"""Acts at once, so that one engine that hangs leaves threads for pages."""
_REPLAYED: Final = (
    "This form was sent already, is older than an hour, or was not made for you. Nothing was done "
    "by this request. The audit page shows whether the first one was carried out."
)
_PREVIEW_ROWS: Final = 200


def add_acts(app: Flask, console: Console, pages: Pages) -> None:
    """Add the forms of all acts to *app*."""
    forms = ActForms(console, pages)
    for each in ACTS:
        view = forms.view_of(each)
        app.add_url_rule(f"/p/<log>{each.rule}", each.endpoint, view, methods=["GET", "POST"])
    app.add_url_rule("/p/<log>/verify", "verify", forms.verify, methods=["POST"])


class ActForms:
    """The forms of one console."""

    def __init__(self, console: Console, pages: Pages) -> None:
        """Act on the logs of *console*, framed as its *pages* are."""
        self._console, self._pages = console, pages
        self._slots = threading.BoundedSemaphore(AT_ONCE)

    def view_of(self, act: Act) -> Callable[..., Answer]:
        """Return the view that shows the form of *act*, and takes it."""

        def view(log: str, part: str = "") -> Answer:
            source = self._pages.source(log)
            if reason := self._console.guard.refusal_to_act(g.identity):
                return _refused(403, f"Nothing was changed: {reason}.")
            if request.method == "POST":
                return self._take(act, source, part)
            return self._show(act, source, part)

        return view

    def _show(self, act: Act, source: LogSource, part: str) -> Answer:
        """Show the form, with what will happen as far as the values are known."""
        values = _sent_values()
        look = source.look()
        offline = act.needs_engine and look.state != "live"
        complete = all(values.get(each.name) for each in act.inputs if each.required)
        preview, problem, typed = None, "", ""
        if complete and not offline:
            try:
                preview, values, typed = self._preview(act, source, part, values)
            except (ConfigError, ActionRefused, OffsetRefused) as error:
                problem = str(error)
        ready = complete and not problem and not offline
        command = ""
        if ready:
            command = self._command(source, act.request(part, values))
        return render_template(
            "act.html",
            act=act,
            part=part,
            values=values,
            preview=preview,
            problem=problem,
            typed=typed,
            command=command,
            offline=offline,
            ready=ready if act.needs_preview else not offline,
            form=self._console.forms.issue(FormGrant(g.identity, request.path, typed)),
            back=self._home_of(act, source, part),
            **self._pages.frame(source, look),
        )

    def _command(self, source: LogSource, wanted: Request) -> str:
        target = self._console.targets[source.name]
        return f"transporter {shlex.join(command_words(wanted, target))}"

    def _preview(
        self, act: Act, source: LogSource, part: str, values: Values
    ) -> tuple[dict[str, Any] | None, Values, str]:
        """Return what *act* would do, its values fixed to that, and the text to type."""
        wanted = act.request(part, values)
        match wanted:
            case Replay():
                found = self._perform(source, replace(wanted, dry_run=True))
                values = values | {"from": str(found["first"]), "to": str(found["last"])}
                return found, values, str(found["entries"])
            case RetryParked() | SkipParked():
                found = self._parked_preview(source, part, values["offsets"])
                return found, values | {"offsets": found["offsets"]}, ""
            case Reload():
                target = self._console.targets[source.name]
                found = run_command("reload", target, "--dry-run")
                if "done" not in found:
                    raise ActionRefused(str(found.get("message", "the engine gave no answer")))
                return found, values, ""
            case Forget():
                self._refuse_named(source, part)
                return None, values, part
            case _:
                return None, values, ""

    def _refuse_named(self, source: LogSource, route: str) -> None:
        """Refuse to forget a route that the pipeline file names, as the command does."""
        outline, _ = outline_of(source)
        named = outline.route(route) if outline is not None else None
        if outline is not None and named is not None:
            raise ActionRefused(
                f"{outline.file}:{named.line}: route {route} is in the pipeline; remove it there "
                "first"
            )

    def _parked_preview(self, source: LogSource, route: str, offsets: str) -> dict[str, Any]:
        """Return the parked entries among *offsets*, and those that wait behind them."""
        wanted = parse_ranges(offsets)
        page = read_parked_page(source.directory, route)
        entries = page.entries
        if not self._console.guard.may_see_payloads(g.identity):
            entries = list(map(parked_without_payload, entries))
        rows = parked_rows(entries)
        chosen = [row for row in rows if any(a <= row.offset <= b for a, b in wanted)]
        if not chosen:
            raise ActionRefused(f"nothing is parked at {offsets} any more")
        named = {row.offset for row in chosen}
        return {
            "offsets": ranges_text(named),
            "count": len(chosen),
            "rows": chosen[:_PREVIEW_ROWS],
            "behind": [row.offset for row in rows if row.behind in named - {row.offset}],
        }

    def _take(self, act: Act, source: LogSource, part: str) -> Answer:
        """Carry the form out, unless it was sent before, and show the result."""
        values = _sent_values()
        if (refusal := self._use_form(values)) is not None:
            return refusal
        if act.needs_reason and not values.get("reason", "").strip():
            raise ConfigError("give a reason, which the audit file keeps; nothing was changed")
        wanted = act.request(part, values)
        if isinstance(wanted, Forget):
            self._refuse_named(source, part)
        try:
            result = self._perform(source, wanted)
        except EngineEnded as error:
            return self._unknown(source, str(error))
        if not self._console.guard.may_see_payloads(g.identity):
            result = result_without_texts(result)
        if wants_json():
            return result_json(result)
        text = f"{act.title}{f' {part}' if part else ''}: {_result_text(act, result)}"
        tone = "warn" if result.get("outcome") == "failed" or result.get("problem") else "good"
        outcome = self._console.outcomes.issue(Outcome(g.identity, text, tone))
        home = self._home_of(act, source, part)
        return redirect(f"{home}{'&' if '?' in home else '?'}done={outcome}", 303)

    def _use_form(self, values: Values) -> Answer | None:
        """Use up the form that the request comes from. Return the refusal of a wrong one."""
        if g.identity.via == "token":
            # No page can make a browser send a token in a header, so a program needs no form.
            return None
        grant = self._console.forms.take(values.get("form", ""))
        if grant is None or (grant.sender, grant.path) != (g.identity, request.path):
            return _refused(409, _REPLAYED)
        if grant.typed and values.get("typed", "").strip() != grant.typed:
            raise ConfigError(f"type {grant.typed} to confirm; nothing was changed")
        return None

    def verify(self, log: str) -> Answer:
        """Begin to verify a log's files, which changes nothing but costs reads of all of them."""
        source = self._pages.source(log)
        if reason := self._console.guard.refusal_to_act(g.identity):
            return _refused(403, f"Nothing was begun: {reason}.")
        if (refusal := self._use_form(_sent_values())) is not None:
            return refusal
        if not self._console.verifier.start(source.name, self._console.targets[source.name]):
            raise ActionRefused("a log is being verified already; wait for its end")
        if wants_json():
            return result_json({"log": source.name, "done": "verification begun"})
        return redirect(url_for("health", log=source.name), 303)

    def _perform(self, source: LogSource, wanted: Request) -> dict[str, Any]:
        if not self._slots.acquire(blocking=False):
            raise EngineUnreachable(
                f"{AT_ONCE} acts still wait for their engines; nothing was changed, try again"
            )
        try:
            person = OnBehalfOf(g.identity.name, "console", g.origin)
            return perform(source.directory, wanted, on_behalf_of=person, answer_within=ANSWER)
        finally:
            self._slots.release()
            source.forget_look()

    def _unknown(self, source: LogSource, problem: str) -> Answer:
        """Say that nobody knows yet whether the act was done."""
        if wants_json():
            return error_json("EngineEnded", problem, EngineEnded.exit_code), 504
        audit = url_for("audit", log=source.name, who=g.identity.name)
        return render_template("unknown.html", problem=problem, audit=audit), 504

    def _home_of(self, act: Act, source: LogSource, part: str) -> str:
        """Return the address of the page from which the act is done."""
        if act.scope == "route" and act.path == "forget":
            return url_for("overview", log=source.name)
        if act.scope == "route":
            is_parked = act.path.startswith("parked/")
            return url_for("parked" if is_parked else "route", log=source.name, route=part)
        return url_for("config" if act.path == "reload" else "overview", log=source.name)


def _sent_values() -> Values:
    """Return the fields of the request. Those of one name are joined: the boxes of a list."""
    if request.is_json:
        sent = request.get_json()
        if not isinstance(sent, dict):
            raise ConfigError("the body is not an object")
        return {
            str(name): ",".join(map(str, each)) if isinstance(each, list) else _text_of(each)
            for name, each in sent.items()
        }
    fields = request.form if request.method == "POST" else request.args
    return {name: ",".join(fields.getlist(name)) for name in fields}


def _text_of(value: object) -> str:
    return "" if value in (None, False) else str(value)


def _result_text(act: Act, result: dict[str, Any]) -> str:
    later = "" if result["live"] else " (no engine runs: the next run applies it)"
    problem = f"; {result['problem']}" if result.get("problem") else ""
    waits = "; not in effect yet" if result.get("in_effect") is False else ""
    pending = [*result.get("pending", ()), *result.get("leaving", ())]
    waits += f"; still to apply it: {', '.join(pending)}" if pending else ""
    return f"{result['done']}{problem}{waits}{'' if act.path == 'ack' else later}"


def _refused(status: int, text: str) -> Answer:
    if wants_json():
        return error_json("Refused", text, 1), status
    return render_template("error.html", heading="Refused", text=text), status
