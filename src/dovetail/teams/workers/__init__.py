"""Functions in child processes: what one of them does costs no other job anything.

crew.py           the processes of a partition: their jobs, and their ends
plan.py           which jobs a worker gets next, and when each has ended                pure
allowance.py      how many jobs of a team may begin now                                 pure
memory.py         how much memory the machine has left for more of them
worker.py         a child process that runs the function, as its parent sees it
worker_child.py   inside that process
worker_report.py  the messages between both
"""
