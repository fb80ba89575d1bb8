"""The order pipeline. `dovetail pipeline show examples.orders.shop:orders` draws it."""

from typing import TypedDict

from dovetail.teams import Pipeline, Reject, Team

PRICES = {"A-7": 1250, "B-2": 399, "C-9": 89_00}


class Order(TypedDict):
    """What comes in: lines such as `A-7 x 3`."""

    customer: str
    lines: list[str]


class Parsed(TypedDict):
    customer: str
    items: dict[str, int]


class Priced(Parsed):
    total: int


def parse_order(order: Order) -> Parsed:
    items: dict[str, int] = {}
    for line in order["lines"]:
        sku, _, count = line.partition(" x ")
        if not count.isdigit():
            raise Reject(f"{line!r} is no line of an order; write it like 'A-7 x 3'")
        items[sku] = items.get(sku, 0) + int(count)
    return {"customer": order["customer"], "items": items}


def price_order(order: Parsed) -> Priced:
    # An unknown article raises KeyError: tried again, then a dead letter with its traceback.
    total = sum(PRICES[sku] * count for sku, count in order["items"].items())
    return {**order, "total": total}


def ship_order(order: Priced) -> str:
    count, euros = sum(order["items"].values()), order["total"] / 100
    return f"{count} items to {order['customer']} for {euros:.2f}"


def refund_order(order: Priced) -> str:
    return f"nothing to ship to {order['customer']}"


parse = Team("parse", work=parse_order, workers=2, timeout="10s", attempts=3, backoff="50ms")
price = Team("price", work=price_order, attempts=2, backoff="50ms")
ship = Team("ship", work=ship_order)
refund = Team("refund", work=refund_order)

parse >> price
price.route_to(lambda result: result["total"] > 0, ship, refund)

orders = Pipeline("orders", parse, price, ship, refund)
