"""The inbox: what a consumer does in its own database happens once for each message.

    inbox = Inbox("billing")

    with Session(engine) as session, session.begin():
        with inbox.once(session, message) as first:
            if first:
                session.add(Invoice(...))

A consumer of a topic, a handler of a timeline or of a shared stream can get a message again: it
died after its commit and before it could say so, it was cut off, or a relay sent the message twice.
The inbox writes the name of the message in the transaction of the effect, under a unique key. So

    committed     both are there, and whoever gets the message again finds its name
    rolled back   neither is, and the message is handled when it comes again
    two at once   the second waits for the commit of the first, and then finds its name; if the
                  first rolls back, the second is the first

Nothing else is promised: what a handler does outside of the transaction can happen again.

A name is kept for `keep` (seven days by default) and then trimmed, a few at a time, within the
transactions that write new ones: no process has to run for it. A message that comes again later
than that is handled again.

    inbox.py     `Inbox`: names written, looked up and trimmed in the caller's transaction
    naming.py    the name of a message, whatever it came with
"""

from dovetail.outbox.inbox.inbox import Inbox

__all__ = ["Inbox"]
