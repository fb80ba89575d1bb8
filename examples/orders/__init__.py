"""A shop's orders: parsed, priced, and shipped or refunded, each once.

shop.py    the pipeline: four functions, and how they are connected
submit.py  submits a few orders and shows their outcomes

    dovetail up
    dovetail pipeline run examples.orders.shop:orders
    python -m examples.orders.submit
"""
