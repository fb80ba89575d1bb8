"""Dead letters of every kind: of timelines, of teams, of shared streams, of the outbox.

source     name                          id                 replay
timeline   the timeline                  its id             due now, from its first attempt
topic      a team's topic of dead jobs   partition:offset   copied to the team's input topic
           a stream's dead events        partition:offset   copied to the end of the stream
outbox     the topic that was meant      its id             put back behind what waits

letter.py      a dead letter, where it lies, and the result of dealing with some
timelines.py   those of timelines                                          asynchronous
topics.py      those of teams and streams: records that say by their headers why they died
marks.py       which of those were dealt with
outbox.py      those of an outbox
"""
