"""Reader of invented orders of a shop, to try pipelines with."""

from __future__ import annotations

import json
import random
import threading
import time
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

from pydantic import Field

from transporter.adaptor import AdaptorConfig, Batch, EndOfSource
from transporter.message import Message

if TYPE_CHECKING:
    from transporter.adaptor import Resume


class DemoReaderConfig(AdaptorConfig):
    """The amount and the rate of demo messages."""

    rate: Annotated[float, Field(gt=0, le=1_000_000)] = 20.0
    """Messages a second."""

    count: Annotated[int, Field(ge=0)] | None = None
    """Messages in all, over every run. Without it there is no end."""

    seed: int = 0
    """The same seed makes the same messages."""


_MOST: Final = 1000
"""Maximum messages in a batch."""

_CUSTOMERS: Final = ("Ada", "Grace", "Alan", "Edsger", "Barbara", "Zoë", "José", "Mei")
_GOODS: Final = (("tea", 450), ("coffee", 1290), ("cup", 800), ("kettle", 3999), ("honey", 675))
_CARRIERS: Final = ("post", "bike", "van")


class DemoReader:
    """Reader of orders that were never placed, at a steady rate.

    The messages depend on the seed and their number alone, times excepted. The
    position is the number of messages made, so a restart continues with the next.
    After a pause it continues at its rate: it does not catch up.
    """

    Config: ClassVar[type[AdaptorConfig]] = DemoReaderConfig

    def __init__(self, config: DemoReaderConfig) -> None:
        """Keep *config*."""
        self._config = config
        self._number = 0
        self._due = 0.0
        self._pause = threading.Event()  # never set: waiting on it is a bounded pause

    def open(self, resume: Resume) -> None:
        """Continue behind the newest logged message."""
        self._number = int(resume.position or 0)
        self._due = time.monotonic()

    def poll(self, timeout: float) -> Batch:
        """Return the messages that are due, waiting up to *timeout* seconds for one."""
        if self._config.count is not None and self._number >= self._config.count:
            raise EndOfSource
        wait = self._due - time.monotonic()
        if wait > 0:
            self._pause.wait(min(wait, timeout))
            if wait > timeout:
                return Batch([])
        return self._make_batch(self._count_due(time.monotonic()))

    def commit(self, position: str) -> None:
        """Do nothing, because messages are made on demand."""

    def close(self) -> None:
        """Do nothing, because nothing is open."""

    def _count_due(self, now: float) -> int:
        rate = self._config.rate
        due = max(1, 1 + int((now - self._due) * rate))
        count = min(due, _MOST)
        self._due = now if due > count else self._due + count / rate
        if self._config.count is None:
            return count
        return min(count, self._config.count - self._number)

    def _make_batch(self, count: int) -> Batch:
        first, self._number = self._number, self._number + count
        timestamp = time.time_ns() // 1000
        messages = [
            order_message(self._config.seed, number, timestamp)
            for number in range(first, self._number)
        ]
        return Batch(messages, str(self._number))


def order_message(seed: int, number: int, timestamp: int = 0) -> Message:
    """Return message *number*. Orders are placed two by two, then shipped two by two."""
    group, part = divmod(number, 4)
    order = 2 * group + part % 2
    choose = random.Random(f"{seed}/{order}")  # noqa: S311 - made-up goods are no secret
    placed = _placed_document(choose, 1000 + order)
    shipped = {"id": 1000 + order, "carrier": choose.choice(_CARRIERS)}
    return Message(
        namespace="orders.placed" if part < 2 else "orders.shipped",  # noqa: PLR2004 - first two of four
        data=json.dumps(placed if part < 2 else shipped, ensure_ascii=False).encode(),  # noqa: PLR2004
        key=f"order-{1000 + order}".encode(),
        timestamp=timestamp,
        source_id=f"{seed}/{number}",
    )


def _placed_document(choose: random.Random, order: int) -> dict[str, object]:
    goods = choose.sample(_GOODS, choose.randint(1, 3))
    basket = [(sku, choose.randint(1, 4), cents) for sku, cents in goods]
    return {
        "id": order,
        "customer": choose.choice(_CUSTOMERS),
        "items": [{"sku": sku, "quantity": many, "cents": cents} for sku, many, cents in basket],
        "total": sum(many * cents for _, many, cents in basket),
    }
