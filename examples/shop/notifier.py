"""One replica of the notifier: while it leads, it writes a mail for every finished order.

    export SHOP_SECRET=$(openssl rand -hex 32)
    python -m examples.shop.notifier --database shop.db --bootstrap 127.0.0.1:9092 --port 8081

Start three, each with a port of its own: one leads, and when it is lost, another one continues
where it stopped (`resume`). What the last leader did but could not report is done again; the order
is the key of a mail's row, so nobody gets two. Changes of leader are printed as JSON.
"""

import argparse
import asyncio
import json
import os
import signal
import threading
from contextlib import closing
from pathlib import Path

from examples.shop.database import connect, now_ms, transaction
from examples.shop.results import DONE

from dovetail.errors import Unavailable
from dovetail.logging import configure_logging
from dovetail.stream import (
    Algorithm,
    Event,
    Leadership,
    MemberStatus,
    SharedStream,
    StreamSettings,
    Takeover,
)

SHARED_LOG = "shop.notifiers"
#: The secret is read from here: a command line is seen by everybody on the machine.
SECRET_VARIABLE = "SHOP_SECRET"
#: A node that is away when this replica starts is asked again after so long.
AGAIN_S = 1.0


def text_of(event: Event) -> str:
    order = json.loads(event.value)
    if order["state"] == "rejected":
        return f"we cannot do this: {order['reason']}"
    return "your order is done"


def settings_of(given: argparse.Namespace) -> StreamSettings:
    return StreamSettings(
        coordination_stream_id=SHARED_LOG,
        environment_identifier="shop",
        endpoint_host_and_port=f"127.0.0.1:{given.port}",
        algorithm=Algorithm.MAJORITY,
        takeover=Takeover.RESUME,
        timeout_ms=given.timeout_ms,
        shared_secret=os.environ[SECRET_VARIABLE],
        vote_path=given.folder / f"notifier-{given.port}.vote",
    )


async def run(given: argparse.Namespace) -> None:
    name = given.name or f"notifier-{given.port}"
    db, one_at_a_time = connect(given.database), threading.Lock()

    def write_mail(event: Event, leadership: Leadership) -> None:
        order_id = (event.key or b"").decode()
        with one_at_a_time, transaction(db):
            db.execute(
                "INSERT INTO mails VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (order_id, now_ms(), name, leadership.term, text_of(event)),
            )

    def changed(status: MemberStatus) -> None:
        print(json.dumps({"role": status.role.value, "term": status.term}), flush=True)

    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    with closing(db):
        while not stopping.is_set():
            stream = SharedStream.on_kafka(given.bootstrap, DONE, write_mail, settings_of(given))
            stream.member.on_change.append(changed)
            try:
                async with stream:
                    await stopping.wait()
            except Unavailable as error:  # The node is away just when this one starts.
                print(json.dumps({"waits": str(error)}), flush=True)
                await asyncio.sleep(AGAIN_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--database", type=Path, default=Path("shop.db"))
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--port", type=int, required=True, help="where the others reach this one")
    parser.add_argument("--name", default="", help="what stands in the mails")
    parser.add_argument("--folder", type=Path, default=Path(), help="where the vote is kept")
    parser.add_argument("--timeout-ms", type=int, default=2_000)
    configure_logging(format="text", level="warning")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
