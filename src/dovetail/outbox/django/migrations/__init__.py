"""Migrations of the outbox for Django.

0001_initial.py        the tables
0002_inbox.py          the table of the inbox
0003_narrow_inbox.py   the same with one index less
"""
