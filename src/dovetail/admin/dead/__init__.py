"""Dead letters of every kind: of timelines, of teams, of shared streams, of the outbox.

source     name                          id                 replay
timeline   the timeline                  its id             due now, from its first attempt
topic      a team's topic of dead jobs   partition:offset   copied to the team's input topic
           a stream's dead events        partition:offset   copied to the end of the stream
outbox     the intended topic            its id             put back behind what waits

letter.py      a dead letter, its place, and the result of replaying or dropping some
reasons.py     groups letters by the reason why they died                  pure
timelines.py   those of timelines                                          asynchronous
topics.py      those of teams and streams: records whose headers say why they died
marks.py       marks which of those were replayed or dropped
outbox.py      those of an outbox
"""
