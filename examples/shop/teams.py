"""The teams: an order is parsed, priced and split into items; each is shipped or ordered again.

    dovetail pipeline show examples.shop.teams:shop
    dovetail pipeline run examples.shop.teams:shop

The functions know nothing of topics, of Spark, or of each other.
"""

from typing import TypedDict

from dovetail.teams import Pipeline, Reject, Team

#: Articles, with prices in cents.
PRICES = {"A-7": 1250, "B-2": 399, "C-9": 8900, "D-4": 75, "E-1": 2100, "F-3": 15}
#: What lies on the shelf; more than that is ordered again.
SHELF = {"A-7": 8, "B-2": 9, "C-9": 2, "D-4": 9, "E-1": 5, "F-3": 9}


class Order(TypedDict):
    """What comes in: lines such as `A-7 x 3`."""

    customer: str
    lines: list[str]
    placed_ms: int


class Line(TypedDict):
    sku: str
    count: int


class Parsed(TypedDict):
    customer: str
    lines: list[Line]


class Item(TypedDict):
    customer: str
    sku: str
    count: int
    cents: int


class Checked(Item):
    on_shelf: bool


def parse_order(order: Order) -> Parsed:
    lines: list[Line] = []
    for line in order["lines"]:
        sku, _, count = line.partition(" x ")
        if not count.isdigit():
            raise Reject(f"{line!r} is no line of an order; write it like 'A-7 x 3'")
        lines.append({"sku": sku, "count": int(count)})
    return {"customer": order["customer"], "lines": lines}


def price_order(order: Parsed) -> list[Item]:
    """An item for each line; the connector sprays them, each with an id of its own."""
    unknown = [line["sku"] for line in order["lines"] if line["sku"] not in PRICES]
    if unknown:
        raise Reject(f"there is no article {unknown[0]!r}")
    return [
        {"customer": order["customer"], **line, "cents": PRICES[line["sku"]] * line["count"]}
        for line in order["lines"]
    ]


def check_stock(item: Item) -> Checked:
    return {**item, "on_shelf": item["count"] <= SHELF[item["sku"]]}


def is_on_shelf(result: Checked) -> bool:
    return result["on_shelf"]


def ship_item(item: Checked) -> str:
    return f"{item['count']} x {item['sku']} on the way to {item['customer']}"


def order_again(item: Checked) -> str:
    return f"{item['count']} x {item['sku']} ordered again for {item['customer']}"


parse = Team("parse", work=parse_order, timeout="10s", input_topic="shop.orders")
price = Team("price", work=price_order, timeout="10s")
stock = Team("stock", work=check_stock, timeout="10s")
ship = Team("ship", work=ship_item, timeout="10s")
backorder = Team("backorder", work=order_again, timeout="10s")

parse >> price
price.spray_to(stock)
stock.route_to(is_on_shelf, ship, backorder)

shop = Pipeline("shop", parse, price, stock, ship, backorder)
