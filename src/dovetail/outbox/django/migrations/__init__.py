"""Migrations of the outbox for Django."""
