"""A small shop on all of Dovetail: outbox, log, teams on Spark, timeline, shared stream.

database.py     the shop's own tables, in a SQLite file beside those of the outbox
shop.py         customers place orders and pay; each in one transaction with its event
teams.py        the pipeline: parse, price, split into items, ship or order again
results.py      writes the outcomes of orders into the shop's database
reminders.py    payment reminders wait on a timeline; those of paid orders are cancelled
notifier.py     one replica of the notifier; of several, one leads and writes the mails
stopping.py     Ctrl-C and SIGTERM, for all of these programs

demo.py         runs all of it as processes and proves the counts (`make demo`)
run.py          one run: its programs, what happens to them, and when it is over
programs.py     processes that are started, killed, paused and started again
chaos.py        which fault comes when                                                  pure
sight.py        counts and positions while it runs
view.py         the live view, or plain lines without a terminal
evidence.py     what database, topics and timeline contain at the end
verdict.py      does it hold: in = out, nothing lost, nothing doubled                    pure
check.py        the same proof for a shop that you ran yourself

orders ─ outbox ─ relay ─> shop.orders ─ parse ─ price ─< stock ─┬─ ship ──────┐
   ▲                           │                                 └─ backorder ─┤
   └──────────────── results <─┼───────────────────────────────────────────────┘
   payments ─ relay ─────────> reminders (timeline)         done ─ relay ─> notifier (one leads)
"""
