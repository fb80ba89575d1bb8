"""All sections together: one frozen object, and the origin of every value."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, PrivateAttr, model_validator

from dovetail.errors import InvalidSetting
from dovetail.settings.client import ClientSettings
from dovetail.settings.coordination import CoordinationSettings
from dovetail.settings.given import DEFAULT_ORIGIN, Origin
from dovetail.settings.groups import GroupsSettings
from dovetail.settings.http import HttpSettings
from dovetail.settings.kafka import KafkaSettings
from dovetail.settings.kinds import Section, is_secret
from dovetail.settings.log import LogSettings
from dovetail.settings.logging import LoggingSettings
from dovetail.settings.metrics import MetricsSettings
from dovetail.settings.node import NodeSettings
from dovetail.settings.outbox import OutboxSettings
from dovetail.settings.security import SecuritySettings
from dovetail.settings.storage import StorageSettings
from dovetail.settings.stream import SharedStreamSettings
from dovetail.settings.timeline import TimelineSettings
from dovetail.settings.tracing import TracingSettings
from dovetail.settings.transactions import TransactionsSettings


@dataclass(frozen=True, slots=True)
class Shown:
    """One setting as `dovetail config show` prints it."""

    name: str
    value: str | int | float | bool
    origin: Origin
    description: str


#: Room in a frame beside the batch that it carries: names of client, transaction and topic.
REQUEST_BYTES = 1024


class Settings(BaseModel):
    """Everything that can be set; built by `load_settings`, or by hand in tests."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    node: NodeSettings = NodeSettings()
    coordination: CoordinationSettings = CoordinationSettings()
    kafka: KafkaSettings = KafkaSettings()
    http: HttpSettings = HttpSettings()
    storage: StorageSettings = StorageSettings()
    log: LogSettings = LogSettings()
    groups: GroupsSettings = GroupsSettings()
    transactions: TransactionsSettings = TransactionsSettings()
    outbox: OutboxSettings = OutboxSettings()
    stream: SharedStreamSettings = SharedStreamSettings()
    timeline: TimelineSettings = TimelineSettings()
    metrics: MetricsSettings = MetricsSettings()
    tracing: TracingSettings = TracingSettings()
    logging: LoggingSettings = LoggingSettings()
    client: ClientSettings = ClientSettings()
    security: SecuritySettings = SecuritySettings()

    _origins: dict[str, Origin] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _check_message_fits(self) -> Self:
        if self.kafka.frame_bytes_max < self.log.message_bytes_max + REQUEST_BYTES:
            raise ValueError(
                f"kafka.frame_bytes_max ({self.kafka.frame_bytes_max}) must be at least "
                f"log.message_bytes_max ({self.log.message_bytes_max}) and {REQUEST_BYTES} more, "
                "or no request could carry the largest message"
            )
        return self

    def origin(self, name: str) -> Origin:
        """Where the value of `section.name` was given."""
        return self._origins.get(name, DEFAULT_ORIGIN)

    def with_origins(self, origins: dict[str, Origin]) -> "Settings":
        """The same values, with where each was given."""
        copy = self.model_copy()
        copy._origins = dict(origins)
        return copy

    def shown(self) -> Iterator[Shown]:
        """Every setting in the order of the sections."""
        for section_name in type(self).model_fields:
            section: Section = getattr(self, section_name)
            for field_name, field in type(section).model_fields.items():
                value = getattr(section, field_name)
                if value and is_secret(field.json_schema_extra):
                    value = "(set, not shown)"
                name = f"{section_name}.{field_name}"
                yield Shown(
                    name=name,
                    value=str(value) if isinstance(value, Path) else value,
                    origin=self.origin(name),
                    description=field.description or "",
                )

    def outbox_bootstrap(self) -> str:
        """The Kafka that the outbox sends to. Raises as `bootstrap`."""
        return self.outbox.kafka or self.bootstrap()

    def bootstrap(self) -> str:
        """The address (host:port) at which this machine's clients reach the node.

        Raises `InvalidSetting` if the node takes any free port, which nobody can know in advance.
        """
        if self.client.bootstrap:
            return self.client.bootstrap
        if self.kafka.port == 0:
            raise InvalidSetting(
                "kafka.port is 0 (any free port), so the node's address is not known; "
                "give it with --bootstrap host:port"
            )
        return str(self.kafka.local_address(port_bound=self.kafka.port))
