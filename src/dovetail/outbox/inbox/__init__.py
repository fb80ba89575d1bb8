"""The inbox: a message takes effect in a consumer's database once.

    inbox = Inbox("billing")

    with Session(engine) as session, session.begin():
        with inbox.once(session, message) as first:
            if first:
                session.add(Invoice(...))

A consumer of a topic, a handler of a timeline or of a shared stream can get a message again: it
died between its commit and the acknowledgement, it was cut off, or a relay sent the message twice.
The inbox writes the name of the message in the transaction of the effect, under a unique key. So

    committed     both are there, and a consumer that gets the message again finds its name
    rolled back   neither is, and the message is handled when it comes again
    two at once   the second waits for the commit of the first, and then finds its name; if the
                  first rolls back, the second is the first

It promises nothing else: what a handler does outside the transaction can happen again.

A name is kept for `keep` (seven days by default) and then trimmed, a few at a time, within the
transactions that write new ones, so no process has to run for it. A message that comes again after
that is handled again.

    inbox.py     `Inbox`: writes, looks up and trims names in the caller's transaction
    naming.py    the name of a message, from whichever source it came
"""

from dovetail.outbox.inbox.inbox import Inbox

__all__ = ["Inbox"]
