"""A small shop on all of Dovetail: outbox, log, teams on Spark, timeline, shared stream.

database.py     the shop's own tables, in a SQLite file; the outbox's lie beside them
shop.py         customers place orders and pay; each in one transaction with its event
teams.py        the pipeline: parse, price, split into items, ship or order again
results.py      what became of each order comes home, by a consumer that may see things twice
reminders.py    payment reminders wait on a timeline; those of paid orders are cancelled
notifier.py     one replica of the notifier; of several, one leads and writes the mails

demo.py         runs all of it as processes and proves the counts (`make demo`)
programs.py     processes that are started, killed, paused and started again
chaos.py        which fault comes when                                                  pure
evidence.py     what database, topics and timeline say
verdict.py      does it hold: in = out, nothing lost, nothing doubled                    pure
view.py         the live view, and lines where there is no terminal

orders ─ outbox ─ relay ─> shop.orders ─ parse ─ price ─< stock ─┬─ ship ──────┐
   ▲                           │                                 └─ backorder ─┤
   └──────────────── results <─┼───────────────────────────────────────────────┘
   payments ─ relay ─────────> reminders (timeline)         done ─ relay ─> notifier (one leads)
"""
