"""Commands ``transporter log``, which work with and without a running engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transporter.cli.command_group import command_group
from transporter.cli.log_compact import compact
from transporter.cli.log_export import export
from transporter.cli.log_info import info
from transporter.cli.log_repair import repair, verify
from transporter.cli.log_show import show
from transporter.cli.log_tail import tail

if TYPE_CHECKING:
    import typer


def build() -> typer.Typer:
    """Build the group."""
    return command_group(
        "Inspect, export, compact or repair a log.",
        info=info,
        show=show,
        tail=tail,
        export=export,
        compact=compact,
        verify=verify,
        repair=repair,
    )
