"""The front end: jobs in, outcomes out, from plain Python without Spark.

frontend.py        submit jobs, ask for a result, read outcomes
submitted.py       a job that is stored: its id and its place
repetition.py      whether a submitted job repeats an earlier one
outcome_reader.py  reads outcomes from where they must begin, and on
"""
