"""``transporter log``: look into a log, beside a running engine or without one."""

from __future__ import annotations

import typer

from transporter.cli.log_compact import compact
from transporter.cli.log_export import export
from transporter.cli.log_info import info
from transporter.cli.log_repair import repair, verify
from transporter.cli.log_show import show
from transporter.cli.log_tail import tail


def build() -> typer.Typer:
    """Put the group together."""
    group = typer.Typer(help="Look into a commit log.", no_args_is_help=True)
    group.command("info")(info)
    group.command("show")(show)
    group.command("tail")(tail)
    group.command("export")(export)
    group.command("compact")(compact)
    group.command("verify")(verify)
    group.command("repair")(repair)
    return group
