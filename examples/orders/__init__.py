"""A shop's orders: parsed, priced, and shipped or refunded, each once.

shop.py    the pipeline: four functions, and how they are connected
submit.py  puts a few orders in and shows what became of them

    dovetail up
    dovetail pipeline run examples.orders.shop:orders
    python -m examples.orders.submit
"""
