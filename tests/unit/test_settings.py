"""Settings: which place wins, what is refused, how values are written."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import InvalidSetting
from dovetail.settings import (
    Flag,
    KafkaSettings,
    Settings,
    format_bytes,
    format_duration_ms,
    load_settings,
    parse_assignment,
    parse_bytes,
    parse_duration_ms,
)
from dovetail.settings.given import variable_of
from dovetail.settings.security import SecuritySettings

PLACES = ("file", "environment", "flag")
PORTS = st.integers(min_value=0, max_value=65535)


def load(
    folder: Path,
    *,
    file: str | None = None,
    environment: dict[str, str] | None = None,
    flags: tuple[str, ...] = (),
) -> Settings:
    config = None
    if file is not None:
        config = folder / "given.toml"
        config.write_text(file)
    return load_settings(
        flags=[parse_assignment(text) for text in flags],
        config=config,
        environment=environment or {},
        folder=folder,
    )


@given(
    ports=st.dictionaries(st.sampled_from(PLACES), PORTS),
    retentions=st.dictionaries(st.sampled_from(PLACES), st.integers(-1, 10**12)),
)
def test_the_strongest_place_wins_in_any_combination(
    tmp_path_factory: pytest.TempPathFactory, ports: dict[str, int], retentions: dict[str, int]
) -> None:
    """U3: flag > environment > file > default, for each setting by itself."""
    folder = tmp_path_factory.getbasetemp()
    given_values = {"kafka.port": ports, "log.retention_ms": retentions}
    tables = [
        f"[{name.partition('.')[0]}]\n{name.partition('.')[2]} = {places['file']}\n"
        for name, places in given_values.items()
        if "file" in places
    ]
    settings = load(
        folder,
        file="".join(tables),
        environment={
            variable_of(name): str(places["environment"])
            for name, places in given_values.items()
            if "environment" in places
        },
        flags=tuple(
            f"{name}={places['flag']}" for name, places in given_values.items() if "flag" in places
        ),
    )
    defaults = {"kafka.port": 9092, "log.retention_ms": 7 * 86_400_000}
    actual = {shown.name: shown for shown in settings.shown()}
    for name, places in given_values.items():
        expected = next((place for place in reversed(PLACES) if place in places), "default")
        assert actual[name].origin.place == expected
        assert actual[name].value == places.get(expected, defaults[name])


@pytest.mark.parametrize("name", [shown.name for shown in Settings().shown()])
def test_every_setting_has_all_three_twins(tmp_path: Path, name: str) -> None:
    """U3: what the file can set, environment and flag can set too, and the origin says which."""
    value = next(shown.value for shown in Settings().shown() if shown.name == name)
    section, _, field = name.partition(".")
    literal = str(value).lower() if isinstance(value, bool) else f"'{value}'"
    from_file = load(tmp_path, file=f"[{section}]\n{field} = {literal}\n")
    from_environment = load(tmp_path, environment={variable_of(name): str(value)})
    from_flag = load(tmp_path, flags=(f"{name}={value}",))
    assert str(from_file.origin(name)) == f"file {tmp_path / 'given.toml'}"
    assert str(from_environment.origin(name)) == f"environment {variable_of(name)}"
    assert str(from_flag.origin(name)) == f"flag --set {name}"
    for settings in (from_file, from_environment, from_flag):
        assert {s.name: s.value for s in settings.shown()}[name] == value


@pytest.mark.parametrize(
    ("places", "unknown", "nearest"),
    [
        ({"file": "[log]\nretention_sm = 1\n"}, "log.retention_sm", "log.retention_ms"),
        ({"file": "[kafak]\nport = 1\n"}, "kafak", "[kafka]"),
        (
            {"environment": {"DOVETAIL_LOG_RETENTON_MS": "1"}},
            "DOVETAIL_LOG_RETENTON_MS",
            "DOVETAIL_LOG_RETENTION_MS",
        ),
        (
            {"environment": {"DOVETAIL_BOOTSTRAP": "h:1"}},
            "DOVETAIL_BOOTSTRAP",
            "DOVETAIL_CLIENT_BOOTSTRAP",
        ),
        (
            {"environment": {"DOVETAIL_KAFAK_PORT": "1"}},
            "DOVETAIL_KAFAK_PORT",
            "DOVETAIL_KAFKA_PORT",
        ),
        ({"flags": ("kafka.prot=1",)}, "kafka.prot", "kafka.port"),
    ],
)
def test_an_unknown_name_is_an_error_that_names_the_nearest(
    tmp_path: Path, places: dict[str, object], unknown: str, nearest: str
) -> None:
    """U3: an unknown setting is refused in the file, the environment and a flag."""
    with pytest.raises(InvalidSetting) as caught:
        load(tmp_path, **places)  # type: ignore[arg-type]
    assert unknown in str(caught.value)
    assert f"the nearest known one is {nearest}" in str(caught.value)


SERVICE_LINKS = {
    "SERVICE_HOST": "10.0.0.1",
    "SERVICE_PORT": "9092",
    "SERVICE_PORT_KAFKA": "9092",
    "PORT": "tcp://10.0.0.1:9092",
    "PORT_9092_TCP": "tcp://10.0.0.1:9092",
    "PORT_9092_TCP_PROTO": "tcp",
    "PORT_9092_TCP_PORT": "9092",
    "PORT_9092_TCP_ADDR": "10.0.0.1",
}


@pytest.mark.parametrize("service", ["DOVETAIL", "DOVETAIL_KAFKA", "DOVETAIL_HTTP", "DOVETAIL_WEB"])
def test_links_to_kubernetes_services_are_not_settings(tmp_path: Path, service: str) -> None:
    """F49: what Kubernetes says about a service named `dovetail…` stops no process, even where
    it has the name of a setting."""
    links = {f"{service}_{name}": value for name, value in SERVICE_LINKS.items()}
    assert load(tmp_path, environment=links) == Settings()


def test_a_variable_that_resembles_no_setting_is_not_ours(tmp_path: Path) -> None:
    """F49: others may have variables that begin with DOVETAIL_."""
    others = {"DOVETAIL_IMAGE_TAG": "7", "DOVETAIL_DEPLOYED_BY": "ci", "DOVETAIL_": "x"}
    assert load(tmp_path, environment=others) == Settings()


@pytest.mark.parametrize(
    "name",
    [
        shown.name
        for shown in Settings().shown()
        if shown.name.endswith(("password", "secret", ".token", ".dsn", ".database"))
    ],
)
def test_a_secret_is_not_shown(tmp_path: Path, name: str) -> None:
    """F45: passwords, also those in the address of a database, are in no list of settings:
    neither `config show` nor DescribeConfigs, which both print what `shown` gives."""
    secret = "postgresql://user:hunter2-hunter2-hunter2-hunter2@host/database"
    settings = load(tmp_path, flags=(f"{name}={secret}",))
    assert "hunter2" not in str([shown.value for shown in settings.shown()])


@pytest.mark.parametrize(
    "file", ["kafka = 1\n", "[kafka\n", "[kafka]\nport = 1\nport = 2\n", "[kafka]\nport = true\n"]
)
def test_a_malformed_file_is_refused(tmp_path: Path, file: str) -> None:
    """U3, U7: a file that is not a settings file is refused with its path in the message."""
    with pytest.raises(InvalidSetting, match=r"given\.toml"):
        load(tmp_path, file=file)


@pytest.mark.parametrize(
    "content",
    [b"a = " + b"[" * 5_000 + b"]" * 5_000, b"[node]\nnode_id = " + b"9" * 5_000, b"\xff"],
    ids=["nested", "digits", "bytes"],
)
def test_a_file_that_no_parser_takes_is_refused(tmp_path: Path, content: bytes) -> None:
    """R6: and ends in a message with its path, not in a traceback."""
    path = tmp_path / "dovetail.toml"
    path.write_bytes(content)
    with pytest.raises(InvalidSetting, match=r"dovetail\.toml is not valid TOML"):
        load_settings(environment={}, folder=tmp_path)


def test_the_mark_of_an_encoding_is_no_part_of_a_file(tmp_path: Path) -> None:
    """R6: some editors write it."""
    (tmp_path / "dovetail.toml").write_bytes(b"\xef\xbb\xbf[node]\nnode_id = 7\n")
    assert load_settings(environment={}, folder=tmp_path).node.node_id == 7


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_a_settings_file_that_cannot_be_read_is_not_one_that_is_missing(
    tmp_path: Path, kind: str
) -> None:
    """R8: a link that leads nowhere, or the folder that a container mounts in place of a missing
    file, made a node start with the defaults: elsewhere, open, with one copy."""
    path = tmp_path / "dovetail.toml"
    path.mkdir() if kind == "folder" else path.symlink_to(tmp_path / "gone.toml")
    with pytest.raises(InvalidSetting, match="cannot read the settings file"):
        load_settings(environment={}, folder=tmp_path)
    with pytest.raises(InvalidSetting, match="cannot read the settings file"):
        load_settings(environment={}, config=Path("a\0b"))


def test_no_setting_holds_nul_and_no_path_is_empty(tmp_path: Path) -> None:
    """R6, R8: an empty data_dir was the working folder, which a new container does not have."""
    texts = [
        f"{section}.{field}"
        for section, one in Settings.model_fields.items()
        for field, about in type(one.default).model_fields.items()
        if about.annotation in (str, Path)
    ]
    assert len(texts) > 30
    for name in texts:
        with pytest.raises(InvalidSetting, match=name):
            load_settings(flags=[Flag(name, "a\0b", "--set")], environment={}, folder=tmp_path)
    environment = {"DOVETAIL_NODE_DATA_DIR": ""}
    with pytest.raises(InvalidSetting, match=r"node\.data_dir = '' .* it is empty"):
        load_settings(environment=environment, folder=tmp_path)


def test_a_file_with_a_password_is_one_line_of_text(tmp_path: Path) -> None:
    """R6: bytes that are no text ended in a traceback, and a device was read without an end."""
    path = tmp_path / "password"
    settings = SecuritySettings(admin_password_file=str(path))
    for content in (b"\xff\n", b"\n"):
        path.write_bytes(content)
        with pytest.raises(InvalidSetting, match="password"):
            settings.admin_password()
    path.write_text("geheim-\u20ac\r\nmore\n")
    assert settings.admin_password() == "geheim-\u20ac"
    endless = SecuritySettings(admin_password_file="/dev/zero")
    assert len(endless.admin_password() or "") < 10_000


def test_a_file_that_is_asked_for_must_exist(tmp_path: Path) -> None:
    """U3: only the default file may be missing."""
    assert load_settings(environment={}, folder=tmp_path) == Settings()
    with pytest.raises(InvalidSetting, match=r"missing\.toml.*--config"):
        load_settings(config=tmp_path / "missing.toml", environment={}, folder=tmp_path)
    with pytest.raises(InvalidSetting, match=r"missing\.toml.*DOVETAIL_CONFIG"):
        path = str(tmp_path / "missing.toml")
        load_settings(environment={"DOVETAIL_CONFIG": path}, folder=tmp_path)


def test_the_file_of_the_working_folder_is_found(tmp_path: Path) -> None:
    """U3: `dovetail.toml` is read where the command runs, unless another is named."""
    (tmp_path / "dovetail.toml").write_text("[kafka]\nport = 1111\n")
    (tmp_path / "other.toml").write_text("[kafka]\nport = 2222\n")
    environment = {"DOVETAIL_CONFIG": str(tmp_path / "other.toml")}
    assert load_settings(environment={}, folder=tmp_path).kafka.port == 1111
    assert load_settings(environment=environment, folder=tmp_path).kafka.port == 2222
    config = tmp_path / "dovetail.toml"
    chosen = load_settings(environment=environment, config=config, folder=tmp_path)
    assert chosen.kafka.port == 1111


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("kafka.port=65536",), r"kafka\.port = '65536' \(flag --set kafka\.port\).*65535"),
        (("kafka.port=http",), r"kafka\.port = 'http'"),
        (("log.retention_ms=7x",), r"'7x' is not a duration; write it like 7d"),
        (("storage.segment_bytes=1MiX",), r"'1MiX' is not a size"),
        (("storage.durability=maybe",), r"'sync' or 'os'"),
        (("node.name=../etc",), r"node\.name"),
        (("kafka.request_bytes_in_flight_max=1MiB",), r"request_bytes_in_flight_max.*at least"),
        (("log.message_bytes_max=200MiB",), r"kafka\.frame_bytes_max .* at least"),
        (
            ("groups.session_timeout_ms_min=2h", "groups.session_timeout_ms_max=1h"),
            "no timeout would be valid",
        ),
        (("kafka.port=1", "kafka.port=2"), r"kafka\.port is given twice"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_origin(
    tmp_path: Path, flags: tuple[str, ...], message: str
) -> None:
    """U3, U7: the error holds the value, where it was given and what would fit."""
    with pytest.raises(InvalidSetting, match=message):
        load(tmp_path, flags=flags)


@pytest.mark.parametrize("text", ["", "kafka.port", "=1"])
def test_a_flag_that_is_no_assignment_is_refused(text: str) -> None:
    """U3: `--set` says how it is written."""
    with pytest.raises(InvalidSetting, match=r"--set section\.name=value"):
        parse_assignment(text)


def test_a_weaker_bad_value_does_no_harm(tmp_path: Path) -> None:
    """U3: only the value in force must fit, so a flag can repair a bad file."""
    settings = load(tmp_path, file="[kafka]\nport = 70000\n", flags=("kafka.port=9000",))
    assert settings.kafka.port == 9000


def test_settings_are_frozen() -> None:
    """U3: nobody changes a setting under a running node."""
    with pytest.raises(ValueError, match="frozen"):
        Settings().kafka.port = 1
    with pytest.raises(ValueError, match="frozen"):
        Settings().kafka = KafkaSettings()


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("7d", 604_800_000),
        ("90s", 90_000),
        ("250ms", 250),
        ("1.5h", 5_400_000),
        ("15m", 900_000),
        ("15 min", 900_000),
        ("2W", 1_209_600_000),
        ("42", 42),
        (42, 42),
        ("-1", -1),
        ("none", -1),
    ],
)
def test_durations(text: object, duration_ms: int) -> None:
    """U3: durations are written with a unit, or as a number in the unit of the name."""
    assert parse_duration_ms(text) == duration_ms


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("64MiB", 67_108_864), ("1GB", 10**9), ("512B", 512), ("1.5kib", 1536), ("7", 7), (7, 7)],
)
def test_sizes(text: object, size_bytes: int) -> None:
    """U3: sizes are written with a unit, or as a number of bytes."""
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "d", "7 7d", "7dd", "0.1ms", "1e3s", "--1", True, "9" * 99])
def test_no_duration(text: object) -> None:
    """U3: what is not a duration is refused."""
    with pytest.raises(InvalidSetting):
        parse_duration_ms(text)


@given(st.integers(min_value=-1, max_value=10**15))
def test_formatted_quantities_parse_to_the_same_number(number: int) -> None:
    """U3: what `config show` prints can be given back."""
    assert parse_duration_ms(format_duration_ms(number)) == number
    assert parse_bytes(format_bytes(number)) == number


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (KafkaSettings(), ("127.0.0.1", 4711)),
        (KafkaSettings(advertised_host="queue.example.org"), ("queue.example.org", 4711)),
        (KafkaSettings(advertised_port=443), ("127.0.0.1", 443)),
    ],
)
def test_the_advertised_address(settings: KafkaSettings, expected: tuple[str, int]) -> None:
    """U2: clients are told the address in use unless another is set."""
    assert settings.advertised(port_bound=4711) == expected


def test_no_wildcard_address_is_advertised() -> None:
    """U2: no client can connect to 0.0.0.0, so it is never told to."""
    host, _ = KafkaSettings(host="0.0.0.0").advertised(port_bound=1)
    assert host not in {"0.0.0.0", ""}


@pytest.mark.parametrize(
    ("flags", "bootstrap"),
    [
        ((), "127.0.0.1:9092"),
        (("kafka.port=1234",), "127.0.0.1:1234"),
        (("kafka.host=0.0.0.0",), "127.0.0.1:9092"),
        (("client.bootstrap=a:1,b:2", "kafka.port=0"), "a:1,b:2"),
    ],
)
def test_the_bootstrap_address_of_clients(
    tmp_path: Path, flags: tuple[str, ...], bootstrap: str
) -> None:
    """U4: commands find the node of the same settings without being told."""
    assert load(tmp_path, flags=flags).bootstrap() == bootstrap


def test_any_free_port_has_no_bootstrap_address(tmp_path: Path) -> None:
    """U7: where the address cannot be known, the error says how to give it."""
    with pytest.raises(InvalidSetting, match="--bootstrap"):
        load(tmp_path, flags=("kafka.port=0",)).bootstrap()


def test_variables_are_unambiguous() -> None:
    """U3: two settings never share an environment variable."""
    variables = [variable_of(shown.name) for shown in Settings().shown()]
    assert all(a != b for a, b in itertools.combinations(variables, 2))
    assert variable_of("log.retention_ms") == "DOVETAIL_LOG_RETENTION_MS"


def test_a_flag_of_a_command_is_named_in_the_origin(tmp_path: Path) -> None:
    """U3: a value given by `--port` says so."""
    flags = [Flag("kafka.port", 0, "--port")]
    settings = load_settings(flags=flags, environment={}, folder=tmp_path)
    assert str(settings.origin("kafka.port")) == "flag --port"
    assert str(settings.origin("kafka.host")) == "default"
