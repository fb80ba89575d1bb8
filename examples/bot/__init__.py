"""A bot with three replicas that answers the messages of a topic; one of them answers at a time.

replica.py   one replica: what you would write
run.py       starts a node and three replicas, kills the leader, and shows who answers
processes.py the node and the replicas as processes
"""
