"""The front end: jobs in, outcomes out, from plain Python without Spark.

frontend.py        submits jobs, asks for a result, reads outcomes
submitted.py       a stored job: its id and its place
repetition.py      whether a submitted job repeats an earlier one
outcome_reader.py  reads outcomes from the right place on
"""
