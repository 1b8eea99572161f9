"""Small shop that takes orders: the application side of the transactional outbox.

Each order changes the shop's tables and the outbox in one transaction, so an
event exists exactly when the change does. Run a pipeline beside it with::

    python -m transporter.quickstart.shop --dir DIR -- transporter run FILE
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import signal
import subprocess
import sys
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import psycopg

from transporter.errors import EnvironmentFault, TransporterError
from transporter.outbox import Record, outbox_sql, stash
from transporter.quickstart.postgres import embedded_postgres
from transporter.quickstart.sales import show_sales

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

Connection = psycopg.Connection[tuple[Any, ...]]

VARIABLE: Final = "ORDERS_DSN"
"""The variable by which commands find the database."""
_CUSTOMERS: Final = (
    ("Ada Marsh", "ada.marsh@example.com", "Leeds"),
    ("Björn Åkesson", "bjorn.akesson@example.com", "Malmö"),
    ("Chiara Conti", "chiara.conti@example.com", "Torino"),
    ("Dmitri Popov", "dmitri.popov@example.com", "Plovdiv"),
    ("Élodie Garnier", "elodie.garnier@example.com", "Nantes"),
    ("Farah Nasser", "farah.nasser@example.com", "Amman"),
    ("Goro Tanaka", "goro.tanaka@example.com", "Sapporo"),
    ("Hanna Koskinen", "hanna.koskinen@example.com", "Oulu"),
)
_PRODUCTS: Final = (
    ("TEA-EARL-250", "Earl Grey, 250 g", 895),
    ("COF-YIRG-500", "Yirgacheffe beans, 500 g", 1690),
    ("CUP-STONE-02", "Stoneware cup", 1250),
    ("POT-GLASS-12", "Glass teapot, 1.2 l", 3400),
    ("FLT-PAPER-100", "Filter papers, 100", 490),
    ("HON-ACAC-350", "Acacia honey, 350 g", 1120),
)
_CARRIERS: Final = ("PostNord", "DHL", "GLS", "Royal Mail")
_LONGEST_QUEUE: Final = 20
"""Number of unshipped orders from which each placed order ships another one."""
_KEPT_ORDERS: Final = 10_000
"""Number of orders to keep; older shipped ones are removed to keep the database small."""


@dataclass
class Shop:
    """Shop that places and ships orders over one connection. Not thread-safe.

    Without an outbox it changes its own tables only.
    """

    connection: Connection
    has_outbox: bool = True
    rng: random.Random = field(default_factory=random.Random)
    waiting: deque[tuple[int, int]] = field(default_factory=deque)

    def place(self) -> int:
        """Place one order and its ``orders.placed`` event; return the order's id."""
        customer = self.rng.randrange(len(_CUSTOMERS))
        items = self._random_basket()
        total = sum(item["quantity"] * item["unit_cents"] for item in items)
        with self.connection.transaction():
            order = self._insert_order(customer + 1, total)
            event = {
                "order_id": order,
                "customer": self._customer_json(customer),
                "items": items,
                "total_cents": total,
                "currency": "EUR",
            }
            self._emit("orders.placed", order, event)
        self.waiting.append((order, customer + 1))
        return order

    def ship(self) -> int:
        """Ship the oldest waiting order, with its ``orders.shipped`` event."""
        order, customer = self.waiting[0]
        with self.connection.transaction():
            self.connection.execute(
                "UPDATE orders SET status = 'shipped', shipped_at = now() WHERE id = %s", [order]
            )
            self.connection.execute(
                "DELETE FROM orders WHERE id <= %s AND status = 'shipped'", [order - _KEPT_ORDERS]
            )
            carrier = self.rng.choice(_CARRIERS)
            parcel = f"{carrier[:2].upper()}{self.rng.randrange(10**9):09d}"
            event = {"order_id": order, "customer_id": customer, "carrier": carrier}
            self._emit("orders.shipped", order, event | {"parcel": parcel})
        self.waiting.popleft()
        return order

    def _random_basket(self) -> list[dict[str, Any]]:
        chosen = self.rng.sample(_PRODUCTS, self.rng.randint(1, 3))
        return [
            {"sku": sku, "title": title, "quantity": self.rng.randint(1, 4), "unit_cents": cents}
            for sku, title, cents in chosen
        ]

    def _customer_json(self, index: int) -> dict[str, Any]:
        name, email, city = _CUSTOMERS[index]
        card = f"**** **** **** {1000 + 137 * index}"
        return {"id": index + 1, "name": name, "email": email, "city": city, "card": card}

    def _insert_order(self, customer: int, total: int) -> int:
        found = self.connection.execute(
            "INSERT INTO orders (customer_id, status, total_cents)"
            " VALUES (%s, 'placed', %s) RETURNING id",
            [customer, total],
        ).fetchone()
        assert found is not None  # noqa: S101 - an INSERT that RETURNs always has a row
        return int(found[0])

    def _emit(self, topic: str, order: int, event: dict[str, Any]) -> None:
        if not self.has_outbox:
            return
        headers = {"event-id": str(UUID(int=self.rng.getrandbits(128), version=4)), "shop": "1"}
        stash(self.connection, Record.json(topic, str(order), event, headers))


def create_schema(dsn: str, *, outbox: bool = True) -> None:
    """Create the shop's tables, its customers and, with *outbox*, that, if they are missing."""
    schema = files("transporter.quickstart").joinpath("schema.sql").read_text(encoding="utf-8")
    with psycopg.connect(dsn) as connection:
        connection.execute(schema)
        if outbox:
            connection.execute(outbox_sql().encode())
        connection.cursor().executemany(
            "INSERT INTO customers VALUES (%s, %s, %s, %s) ON CONFLICT (id) DO NOTHING",
            [(number, *customer) for number, customer in enumerate(_CUSTOMERS, 1)],
        )


def take_orders(
    dsn: str, stop: Event, rate: float = 5.0, limit: int | None = None, *, outbox: bool = True
) -> int:
    """Place *rate* orders a second and ship them a little later, and return the number placed.

    It ends when *stop* is set or after *limit* orders. It ships the remaining orders
    before it returns, so that each order has both events. Call :func:`create_schema`
    first, with the same *outbox*.
    """
    placed = 0
    with psycopg.connect(dsn, autocommit=True, application_name="shop") as connection:
        shop = Shop(connection, outbox)
        started = monotonic()
        while placed != limit and not stop.wait(max(0.0, started + placed / rate - monotonic())):
            shop.place()
            placed += 1
            if len(shop.waiting) > _LONGEST_QUEUE or shop.rng.random() < len(shop.waiting) / 10:
                shop.ship()
        while shop.waiting:
            shop.ship()
    return placed


@contextmanager
def open_for_orders(dsn: str, rate: float = 5.0, *, outbox: bool = True) -> Iterator[None]:
    """Take orders on a thread during the block, and report its failure on stderr."""
    create_schema(dsn, outbox=outbox)
    stop = Event()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="shop-client") as pool:
        client = pool.submit(take_orders, dsn, stop, rate, outbox=outbox)
        client.add_done_callback(_report_failure)
        try:
            yield
        finally:
            stop.set()


def _report_failure(client: Future[int]) -> None:
    if error := client.exception():
        sys.stderr.write(f"shop: taking orders has failed: {error}\n")


def _run_command(command: Sequence[str], environment: dict[str, str]) -> int:
    """Run *command* in the foreground until it ends by itself, and return its exit code.

    Ctrl-C reaches it from the terminal. SIGTERM is forwarded.
    """
    children: list[subprocess.Popen[bytes]] = []

    def forward(number: int, _: FrameType | None) -> None:
        for child in children:
            if number == signal.SIGTERM:
                child.send_signal(number)

    # Installed before the command starts, because from then on only its end may end us.
    with _signal_handlers({signal.SIGINT: forward, signal.SIGTERM: forward}):
        try:
            children.append(subprocess.Popen(command, env=environment))
        except OSError as error:
            raise EnvironmentFault(f"cannot run {command[0]}: {error.strerror}") from error
        code = children[0].wait()
    return 128 - code if code < 0 else code


@contextmanager
def _signal_handlers(wanted: dict[signal.Signals, Any]) -> Iterator[None]:
    former = {number: signal.signal(number, action) for number, action in wanted.items()}
    try:
        yield
    finally:
        for number, action in former.items():
            signal.signal(number, action)


def _exit_on_signal(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


def export_line(dsn: str) -> str:
    """Return the line of a shell by which other commands find the database."""
    return f"  export {VARIABLE}={shlex.quote(dsn)}"


def _parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m transporter.quickstart.shop",
        description="Run COMMAND beside an embedded PostgreSQL and a shop that takes orders in "
        "it. COMMAND finds the database in ORDERS_DSN. If it is `transporter run FILE` and FILE "
        "has a route `sales` into Parquet, the sales are shown at its end.",
    )
    parser.add_argument("--dir", type=Path, required=True, help="folder of the database")
    parser.add_argument("--rate", type=float, default=5.0, help="orders a second (default 5)")
    parser.add_argument(
        "command", nargs="+", metavar="COMMAND", help="the command to run, after --"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run server, client and command, then show the sales; return the command's exit code."""
    arguments = _parse_arguments(argv)
    with _signal_handlers({signal.SIGTERM: _exit_on_signal}):
        try:
            with (
                embedded_postgres(arguments.dir) as dsn,
                open_for_orders(dsn, arguments.rate),
            ):
                environment = {**os.environ, VARIABLE: dsn}
                sys.stderr.write(
                    "shop: commands in another terminal find the database by its variable:\n"
                    f"{export_line(dsn)}\n"
                )
                code = _run_command(arguments.command, environment)
            if code == 0:
                # The command's live table has left the terminal by now.
                show_sales(arguments.command, environment)
            return code  # noqa: TRY300 - the result of the block above
        except TransporterError as error:
            sys.stderr.write(f"shop: {error}\n")
            return error.exit_code
        except KeyboardInterrupt:
            return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
