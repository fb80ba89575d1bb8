"""Several brokers on one machine, before anything starts: numbers, ports, settings, refusals."""

from pathlib import Path

import pytest

from dovetail.cli.brokers import arguments, check, planned, storage_settings
from dovetail.errors import InvalidSetting
from dovetail.settings import Flag, Settings, load_settings


def settings(tmp_path: Path, **given: object) -> Settings:
    flags = [Flag(name.replace("__", "."), value, "--test") for name, value in given.items()]
    return load_settings(flags=[Flag("node.data_dir", str(tmp_path), "--test"), *flags])


def test_brokers_have_the_ports_from_the_given_ones_on(tmp_path: Path) -> None:
    """U2: the first broker is where a single node would be; storage comes behind all of them."""
    wanted = settings(tmp_path, kafka__port=9092, http__port=9080, kafka__advertised_port=19092)
    brokers = planned(wanted, 3)
    assert [(one.number, one.port, one.http_port, one.advertised_port) for one in brokers] == [
        (101, 9092, 9080, 19092),
        (102, 9093, 9081, 19093),
        (103, 9094, 9082, 19094),
    ]
    storage = storage_settings(wanted, 3)
    assert storage.node.roles == "overseer,storage"
    assert storage.coordination.share
    assert not storage.coordination.alone
    assert (storage.kafka.host, storage.kafka.port) == ("127.0.0.1", 0)
    assert storage.kafka.advertised_port == 0
    assert storage.http.port == 9083


def test_free_ports_stay_free(tmp_path: Path) -> None:
    """U2: 0 takes any free port, for each broker."""
    wanted = settings(tmp_path, kafka__port=0, http__port=0)
    assert {(one.port, one.http_port) for one in planned(wanted, 4)} == {(0, 0)}
    assert storage_settings(wanted, 4).http.port == 0


def test_a_broker_is_started_with_what_is_its_own(tmp_path: Path) -> None:
    """U2: a broker has no disk, shares the coordination, and ends with who started it."""
    wanted = settings(tmp_path, kafka__advertised_host="queue.example.org")
    given = arguments(planned(wanted, 2)[1], wanted, "127.0.0.1:4711")
    assert given[:3] == ["node", "--json", "--until-input-ends"]
    assert "--roles=overseer,broker" in given
    assert "--node-id=102" in given
    assert "--port=9093" in given
    assert "--advertised-host=queue.example.org" in given
    assert "--set=coordination.shared_at=127.0.0.1:4711" in given


def test_what_several_brokers_cannot_do_is_refused_first(tmp_path: Path) -> None:
    """U2: nothing starts that would then not serve what the folder holds, or anybody."""
    check(settings(tmp_path), 2)
    for given in (
        {"coordination__kind": "etcd"},
        {"kafka__port": 65_530},
        {"http__port": 65_530},
    ):
        with pytest.raises(InvalidSetting):
            check(settings(tmp_path, **given), 8)

    check(settings(tmp_path), 11)
    with pytest.raises(InvalidSetting, match="9080 to 9092, meet those for Kafka clients"):
        check(settings(tmp_path), 12)
    check(settings(tmp_path, http__enabled=False), 12)
    check(settings(tmp_path, http__port=0), 12)
    check(settings(tmp_path, http__port=9104), 12)
    with pytest.raises(InvalidSetting, match="meet"):
        check(settings(tmp_path, http__port=9103), 12)

    (tmp_path / "timelines").mkdir()
    check(settings(tmp_path), 2)
    (tmp_path / "timelines" / "0000000001.sqlite").touch()
    with pytest.raises(InvalidSetting, match="1 timelines in files"):
        check(settings(tmp_path), 2)
    check(settings(tmp_path, timeline__enabled=False), 2)
