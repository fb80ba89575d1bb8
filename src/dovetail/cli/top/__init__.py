"""`dovetail top`: what a cluster does right now, in a terminal.

Three sources are asked, each on its own thread, so that one that is away hides nothing of the
others: the Kafka port (topics, groups, pipelines), the timeline requests on the same port, and HTTP
(nodes, streams). What a source answered is a `Look`; `picture` compares it with the last good one
and makes tables of it, without I/O. A source that does not answer leaves its last tables on the
screen with their age and the reason, and is asked again at every look: a node that restarts comes
back by itself.

    command.py    the command, and the loop of the live view
    looking.py    asks the sources, by the functions of `admin`
    picture.py    from looks to tables: rates, order, what does not answer      pure
    view.py       the tables on the screen, and what the keys have chosen
    keyboard.py   single keys from a terminal
"""
