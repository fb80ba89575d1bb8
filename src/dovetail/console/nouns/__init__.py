"""The API: one module for each noun, with its types, its handlers and its `ENDPOINTS`.

    overview.py            the cluster at a glance
    access.py              users and access rules
    clients.py             who is connected
    topics.py              topics with partitions, owners and settings
    messages.py            messages of a topic: read them, produce one
    decoded.py             a message by the schemas of a registry
    groups.py              consumer groups: members, positions, lag
    history.py             the last hour of this node, for charts
    timelines.py           timelines with load, lateness and consumers
    timeline_messages.py   messages and schedules of a timeline
    receiving.py           lets programs of any language receive and finish messages
    streams.py             shared streams
    pipelines.py           pipelines of teams
    outbox.py              the outbox
    dead.py                dead letters of every kind

A handler gets the `Desk` and the decoded request, calls a function of `admin`, and returns a
struct.
"""
