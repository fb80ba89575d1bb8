"""Submits orders, some of them odd, and shows the outcome of each."""

import sys

from examples.orders.shop import Order, orders

from dovetail.teams import FrontEnd, JobFailed, create_topics

SAMPLE: dict[str, Order] = {
    "order-1": {"customer": "Ada", "lines": ["A-7 x 2", "B-2 x 1"]},
    "order-2": {"customer": "Grace", "lines": []},
    "order-3": {"customer": "Edsger", "lines": ["A-7 times 2"]},
    "order-4": {"customer": "Barbara", "lines": ["Z-1 x 1"]},
}


def ask_all(front: FrontEnd, timeout_s: float = 60.0) -> dict[str, str]:
    """What became of each order, in words."""
    found = {}
    for job_id, order in SAMPLE.items():
        try:
            found[job_id] = front.ask(order, job_id, timeout_s=timeout_s)
        except JobFailed as error:
            assert error.outcome.failure is not None
            found[job_id] = f"given up: {error.outcome.failure.reason}"
    return found


if __name__ == "__main__":
    bootstrap = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
    create_topics(orders, bootstrap)
    with FrontEnd(orders, bootstrap) as front_end:
        for name, outcome in ask_all(front_end).items():
            print(f"{name}: {outcome}")
