"""Migrations of the outbox for Django.

0001_initial.py   the tables
0002_inbox.py     the table of the inbox
"""
