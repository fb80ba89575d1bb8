"""Settings of an election and of a shared stream, with foreign text in them."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from tests.foreign_values import NASTY_TEXTS, each_of, foreign, texts

from dovetail.election import Algorithm
from dovetail.election.signature import Sealer
from dovetail.errors import InvalidSetting
from dovetail.stream import StreamSettings

SECRET = "a secret of sixteen bytes or more"


@pytest.mark.parametrize("algorithm", list(Algorithm))
@foreign
@each_of(
    NASTY_TEXTS,
    stream_id="s",
    environment="test",
    path="/p",
    address="127.0.0.1:8080",
    host="127.0.0.1",
    secret=SECRET,
    file="vote",
)
@given(
    stream_id=texts,
    environment=texts,
    path=texts,
    address=texts,
    host=texts,
    secret=texts,
    file=texts,
)
def test_settings_of_a_stream(
    algorithm: Algorithm,
    stream_id: str,
    environment: str,
    path: str,
    address: str,
    host: str,
    secret: str,
    file: str,
) -> None:
    """R6: what passes the check can be sent, stored and listened on; all else is refused there."""
    settings = StreamSettings(
        coordination_stream_id=stream_id,
        environment_identifier=environment,
        algorithm=algorithm,
        endpoint_path=path,
        endpoint_host_and_port=address,
        listen_host=host,
        shared_secret=secret,
        vote_path=Path(file),
        authority_path=file,
    )
    try:
        settings.check()
        settings.check_secret()
    except InvalidSetting as error:
        assert str(error).encode(), "a refusal that cannot be shown"
        assert len(secret) < 16 or secret not in str(error)
        return
    assert settings.endpoint.encode().isascii()
    assert str(settings.listen_address).encode().isascii()
    assert f"{stream_id}/{environment}".encode()
    assert Sealer(settings.endpoint, settings.secret, {}) is not None
    with suppress(OSError):
        Path(file).exists()
