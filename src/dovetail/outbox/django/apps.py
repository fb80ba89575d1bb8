"""The Django app of the outbox."""

from django.apps import AppConfig


class OutboxConfig(AppConfig):  # type: ignore[misc] # Django has no types.
    """Brings the tables as a migration; there are no models, the relay reads by plain SQL."""

    name = "dovetail.outbox.django"
    label = "dovetail_outbox"
    verbose_name = "Dovetail outbox"
