"""`dovetail top`: the live state of a cluster, in a terminal.

It asks three sources, each on its own thread, so that one that is away hides nothing of the others:
the Kafka port (topics, groups, pipelines), the timeline requests on the same port, and HTTP (nodes,
streams). The answer of a source is a `Look`; `picture` compares it with the last good one and makes
tables of it, without I/O. If a source does not answer, its last tables stay on the screen with
their age and the reason, and every look asks it again: a node that restarts reappears by itself.

    command.py    the command, and the loop of the live view
    looking.py    asks the sources, by the functions of `admin`
    picture.py    from looks to tables: rates, order, silent sources            pure
    view.py       the tables on the screen, and what the keys have chosen
    keyboard.py   single keys from a terminal
"""
