"""The forms of acts: each is shown with its effect, and sent once.

A GET shows what will happen and changes nothing. A POST carries the request out through the
engine, or under the log's lock without one, on behalf of the sender. So the audit file names the
person whatever becomes of the console.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flask import g, redirect, render_template, request, url_for

from transporter.audit import OnBehalfOf
from transporter.console.acts import ACTS, ranges_text
from transporter.console.answers import error_json, here, result_json, wants_json
from transporter.console.child import run_command
from transporter.console.readings import list_waiting, outline_of, read_parked_page
from transporter.console.state import FormGrant, Outcome
from transporter.console.views.privacy import error_without_text, result_without_texts
from transporter.control.client import EngineEnded, perform
from transporter.control.parked_selection import range_text, requested_ranges, select_parked
from transporter.control.parked_values import list_parked_offsets
from transporter.control.request_arguments import command_words
from transporter.control.requests import Forget, Reload, Replay, RetryParked, SkipParked
from transporter.errors import (
    ActionRefused,
    ConfigError,
    EngineUnreachable,
    EnvironmentFault,
    OffsetRefused,
    TransporterError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flask import Flask

    from transporter.console.acts import Act, Values
    from transporter.console.answers import Answer
    from transporter.console.pages import Pages
    from transporter.console.sources import LogSource
    from transporter.console.state import Console
    from transporter.control.requests import Request

ANSWER: Final = 45.0
"""Seconds for an engine's answer: a skip waits up to 30 for the slice that the route is at."""
SECOND_CLICK: Final = 5.0
"""Seconds for which a form that is sent again waits for the result of the first."""
_TICK: Final = 0.05
_MOST_WAITING: Final = 2
"""Forms that wait so at once. Others get "under way" at once."""
AT_ONCE: Final = 4
"""Acts at once, so that one engine that hangs leaves threads for pages."""
_REPLAYED: Final = (
    "This form was sent already, is older than an hour, or was not made for you. Nothing was done "
    "by this request. The audit page shows whether the first one was carried out."
)
_UNREACHED: Final = "The first click has reached no engine. Nothing was changed; try again."
_SEE_AUDIT: Final = "the audit page has its outcome, once it is known"
_UNDER_WAY: Final = f"It is being carried out; {_SEE_AUDIT}"
_OUTDATED: Final = (
    "What you were shown is not what would be done now. Nothing was changed. Open the form again, "
    "and look again."
)
_NOT_COUNTED: Final = (
    f"The engine did not finish this count within {ANSWER:g} s. Nothing was changed. Name a "
    "shorter range, or use the command in a terminal, which waits for longer."
)
_PREVIEW_ROWS: Final = 200


class FormSpent(ActionRefused):
    """The form was used up, has expired, or belongs to another person."""


@dataclass(frozen=True, slots=True)
class Preview:
    """The values of a form, with what the act would do by them.

    Attributes:
        values: fixed to what is shown.
        shown: what the page shows, if the act has a preview.
        typed: the text that a person types to confirm it.

    """

    values: Values
    shown: dict[str, Any] | None = None
    typed: str = ""

    @property
    def refused(self) -> bool:
        """Whether the engine would refuse all of it."""
        return bool(self.shown and self.shown.get("refusals"))


def add_acts(app: Flask, console: Console, pages: Pages) -> ActForms:
    """Add the forms of all acts to *app*, and return them."""
    forms = ActForms(console, pages)
    for each in ACTS:
        view = forms.view_of(each)
        app.add_url_rule(f"/p/<log>{each.rule}", each.endpoint, view, methods=["GET", "POST"])
    app.add_url_rule("/p/<log>/verify", "verify", forms.verify, methods=["POST"])
    return forms


class ActForms:
    """The forms of one console."""

    def __init__(self, console: Console, pages: Pages) -> None:
        """Act on the logs of *console*, framed as its *pages* are."""
        self._console, self._pages = console, pages
        self._slots = threading.BoundedSemaphore(AT_ONCE)
        self._using = threading.Lock()
        self._waiting = threading.BoundedSemaphore(_MOST_WAITING)

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
        preview, problem = Preview(sent_values()), ""
        look = source.look()
        offline = act.needs_engine and look.state != "live"
        complete = all(preview.values.get(each.name) for each in act.inputs if each.required)
        if complete and not offline:
            try:
                preview = self._preview(act, source, part, preview.values)
            except EngineEnded:
                problem = _NOT_COUNTED
            except (ConfigError, ActionRefused, OffsetRefused, EnvironmentFault) as error:
                problem = str(error)
        ready = (complete or not act.needs_preview) and not (offline or problem or preview.refused)
        form = FormGrant(g.identity, here(), preview.typed, _digest_of(act, preview))
        command = ""
        if ready and complete:
            command = self._command(source, act.request(part, preview.values))
        return render_template(
            "act.html",
            act=act,
            part=part,
            values=preview.values,
            preview=preview.shown,
            problem=problem,
            typed=preview.typed,
            command=command,
            offline=offline,
            ready=ready,
            form=self._console.forms.issue(form) if ready else "",
            back=self._home_of(act, source, part),
            **self._pages.frame(source, look),
        )

    def _command(self, source: LogSource, wanted: Request) -> str:
        target = self._console.targets[source.name]
        return f"transporter {shlex.join(command_words(wanted, target))}"

    def _preview(self, act: Act, source: LogSource, part: str, values: Values) -> Preview:
        """Return what *act* would do, its values fixed to that, and the text to type."""
        wanted = act.request(part, values)
        match wanted:
            case Replay():
                found = self._perform(source, replace(wanted, dry_run=True))
                values = values | {"from": str(found["first"]), "to": str(found["last"])}
                return Preview(values, found, str(found["entries"]))
            case RetryParked() | SkipParked():
                found = self._preview_parked(source, wanted)
                return Preview(values | {"offsets": found["offsets"]}, found)
            case Reload():
                return Preview(values, self._preview_reload(source))
            case Forget():
                self._refuse_named(source, part)
                return Preview(values, typed=part)
            case _:
                return Preview(values)

    def _preview_reload(self, source: LogSource) -> dict[str, Any]:
        """Return what a reload would do, by the command, which checks the file's SQL first.

        Its process is the one that starts Java for that, and ends.
        """
        with self.slot():
            found = run_command("reload", self._console.targets[source.name], "--dry-run")
        if "done" not in found:
            raise ActionRefused(str(found.get("message", "the engine gave no answer")))
        ours, running = source.file, Path(found["file"])
        if ours is None or ours.resolve() != running.resolve():
            raise ActionRefused(
                f"the engine runs {running}, and this console shows {ours}; start a console with "
                "the engine's file to reload it. Nothing was changed"
            )
        return found

    def _refuse_named(self, source: LogSource, route: str) -> None:
        """Refuse to forget a route that the pipeline file names, as the command does."""
        outline, problem = outline_of(source)
        if outline is None:
            if source.is_named_by_file:
                raise ActionRefused(f"{problem}. So nobody knows whether it names route {route}")
            return
        if (named := outline.route(route)) is not None:
            raise ActionRefused(
                f"{outline.file}:{named.line}: route {route} is in the pipeline; remove it there "
                "first"
            )

    def _preview_parked(
        self, source: LogSource, wanted: RetryParked | SkipParked
    ) -> dict[str, Any]:
        """Return the parked entries that *wanted* names, and those that wait behind them."""
        directory, route = source.directory, wanted.route
        ranges = requested_ranges(wanted)
        found = select_parked(list_parked_offsets(directory, route), ranges)
        row_of = self._pages.parked_row
        read = read_parked_page(directory, route, row_of, found.chosen, _PREVIEW_ROWS)
        # A copy that cannot be read can be skipped, but not delivered.
        refused = read.damaged if isinstance(wanted, RetryParked) else {}
        chosen = [each for each in found.chosen if each not in refused]
        if not chosen:
            if refused:
                first = next(iter(refused.values()))
                raise ActionRefused(f"{first}; skip it, or restore it with 'log repair'")
            raise ActionRefused(f"nothing is parked at {range_text(ranges)} any more")
        return {
            "offsets": ranges_text(chosen),
            "count": len(chosen),
            "rows": read.entries,
            "damaged": read.damaged,
            "refused": refused,
            "left_out": [f"{range_text([(a, b)])}: {reason}" for a, b, reason in found.refused],
            "behind": list_waiting(directory, route, frozenset(chosen)),
        }

    def _take(self, act: Act, source: LogSource, part: str) -> Answer:
        """Carry the form out, and show the result. One that is sent again has that of the first."""
        values = sent_values()
        form = f"{values.get('form', '')} {here()}"
        try:
            return self._carry_out(act, source, part, values, form)
        except FormSpent:
            if (first := self._await_first(form)) is None:
                if self._console.forms.find(values.get("form", "")) is None:
                    raise
                raise ActionRefused(_UNREACHED) from None
        return self._show_outcome(act, source, part, first)

    def _carry_out(
        self, act: Act, source: LogSource, part: str, values: Values, form: str
    ) -> Answer:
        grant = self.find_form(values)
        if act.needs_reason and not values.get("reason", "").strip():
            raise ConfigError("give a reason, which the audit file keeps; nothing was changed")
        wanted = act.request(part, values)
        preview = self._look_again(source, wanted, values)
        if grant is not None:
            if grant.seen != _digest_of(act, preview):
                raise ActionRefused(_OUTDATED)
            self._use_form(values, form)
        keep = partial(self._console.results.keep, form)
        name = f"{act.title}{f' {part}' if part else ''}"
        try:
            result = self._perform(source, wanted)
        except EngineEnded as error:
            keep(Outcome(g.identity, f"{name}: {error}; {_SEE_AUDIT}", "bad"))
            return self._unknown(source, str(error))
        except EngineUnreachable:
            if grant is not None:  # Nothing was begun, so the form is good for another try.
                self._console.forms.keep(values["form"], grant)
            self._console.results.take(form)
            raise
        except BaseException as error:
            known = isinstance(error, TransporterError)
            text = str(error) if known else f"it has failed; {_SEE_AUDIT}"
            keep(Outcome(g.identity, f"{name}: {text}", "bad"))
            raise
        problems = _problems_in(result)
        tone = "warn" if result.get("outcome") == "failed" or problems else "good"
        outcome = Outcome(g.identity, f"{name}: {_result_text(act, result, problems)}", tone)
        keep(outcome)
        if wants_json():
            return result_json(result)
        return self._show_outcome(act, source, part, outcome)

    def _use_form(self, values: Values, form: str) -> None:
        """Use the form up, unless another request has done that meanwhile."""
        with self._using:
            if self._console.forms.take(values["form"]) is None:
                raise FormSpent(_REPLAYED)
            self._console.results.keep(form, Outcome(g.identity, _UNDER_WAY))

    def _await_first(self, form: str) -> Outcome | None:
        """Return the outcome of the same form, for a person who has clicked twice."""
        if not self._waiting.acquire(blocking=False):
            return self._find_first(form, time.monotonic())
        try:
            return self._find_first(form, time.monotonic() + SECOND_CLICK)
        finally:
            self._waiting.release()

    def _find_first(self, form: str, until: float) -> Outcome | None:
        while (found := self._console.results.find(form)) and found.sender == g.identity:
            if found.tone:
                return found
            if time.monotonic() >= until:
                return replace(found, tone="warn")
            time.sleep(_TICK)
        return None

    def _look_again(self, source: LogSource, wanted: Request, values: Values) -> Preview:
        """Return what is about to be done. Refuse what the pipeline file forbids by now."""
        match wanted:
            case Forget(route):
                self._refuse_named(source, route)
            case Reload():
                # For a program, too: the engine itself would take SQL that does not parse.
                return Preview(values, self._preview_reload(source))
        return Preview(values)

    def _show_outcome(self, act: Act, source: LogSource, part: str, outcome: Outcome) -> Answer:
        """Lead to the page that the act is about, which shows *outcome* once."""
        shown = self._console.outcomes.issue(outcome)
        home = self._home_of(act, source, part)
        return redirect(f"{home}{'&' if '?' in home else '?'}done={shown}", 303)

    def find_form(self, values: Values) -> FormGrant | None:
        """Return the right by which the form may be sent, ``None`` for a program.

        It is not used up yet, so that somebody can correct what they have typed.

        Raises:
            FormSpent: there is none.
            ConfigError: the text to confirm is not typed.

        """
        if g.identity.via == "token":
            # No page can make a browser send a token in a header, so a program needs no form.
            return None
        grant = self._console.forms.find(values.get("form", ""))
        if grant is None or (grant.sender, grant.path) != (g.identity, here()):
            raise FormSpent(_REPLAYED)
        if grant.typed and values.get("typed", "").strip() != grant.typed:
            raise ConfigError(f"type {grant.typed} to confirm; nothing was changed")
        return grant

    def verify(self, log: str) -> Answer:
        """Begin to verify a log's files, which changes nothing but costs reads of all of them."""
        source = self._pages.source(log)
        if reason := self._console.guard.refusal_to_act(g.identity):
            return _refused(403, f"Nothing was begun: {reason}.")
        self.find_form(sent_values())
        if not self._console.verifier.start(source.name, self._console.targets[source.name]):
            raise ActionRefused("another log is being verified; wait for its end")
        if wants_json():
            return result_json({"log": source.name, "done": "verification begun"})
        return redirect(url_for("health", log=source.name), 303)

    def _perform(self, source: LogSource, wanted: Request) -> dict[str, Any]:
        """Return the result of *wanted*, or raise its error, as the sender may see them."""
        person = OnBehalfOf(g.identity.name, "console", g.origin)
        payloads = self._console.guard.may_see_payloads(g.identity)
        try:
            with self.slot():
                found = perform(source.directory, wanted, on_behalf_of=person, answer_within=ANSWER)
        except TransporterError as error:
            if payloads:
                raise
            raise error_without_text(error) from None
        finally:
            source.forget_look()
        return found if payloads else result_without_texts(found)

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Hold one of the few places for what may wait for an engine or a process."""
        if not self._slots.acquire(blocking=False):
            raise EngineUnreachable(
                f"{AT_ONCE} acts still wait for their engines; nothing was changed, try again"
            )
        try:
            yield
        finally:
            self._slots.release()

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


def sent_values() -> Values:
    """Return the fields of the request. Those of one name are joined: the boxes of a list."""
    if request.is_json:
        try:
            sent = request.get_json()
        except RecursionError:
            raise ConfigError("the body is nested too deeply") from None
        if not isinstance(sent, dict):
            raise ConfigError("the body is not an object")
        return {
            str(name): ",".join(map(_text_of, each)) if isinstance(each, list) else _text_of(each)
            for name, each in sent.items()
        }
    fields = request.form if request.method == "POST" else request.args
    return {name: ",".join(fields.getlist(name)) for name in fields}


def _text_of(value: object) -> str:
    if value is None or isinstance(value, bool):
        return "1" if value else ""
    return str(value)


def _digest_of(act: Act, preview: Preview) -> str:
    """Return a digest of what a person has seen, by which the form that is sent is compared."""
    if not act.needs_preview:
        return ""
    seen = [preview.values.get(each.name, "") for each in act.inputs if each.previewed]
    found = preview.shown if not act.inputs else None
    return hashlib.sha256(json.dumps([seen, found], sort_keys=True).encode()).hexdigest()


def _problems_in(result: dict[str, Any]) -> list[str]:
    """Return the problems that an act has met, though it was done."""
    readers = [f"reader {name}: {text}" for name, text in result.get("problems", {}).items()]
    return [result["problem"], *readers] if result.get("problem") else readers


def _result_text(act: Act, result: dict[str, Any], problems: list[str]) -> str:
    later = "" if result["live"] else " (no engine runs: the next run applies it)"
    problem = "".join(f"; {each}" for each in problems)
    waits = "; not in effect yet" if result.get("in_effect") is False else ""
    pending = [*result.get("pending", ()), *result.get("leaving", ())]
    waits += f"; still to apply it: {', '.join(pending)}" if pending else ""
    return f"{result['done']}{problem}{waits}{'' if act.path == 'ack' else later}"


def _refused(status: int, text: str) -> Answer:
    if wants_json():
        return error_json("Refused", text, 1), status
    return render_template("error.html", heading="Refused", text=text), status
