"""Migrations of the outbox for Django.

0001_initial.py   the tables
"""
