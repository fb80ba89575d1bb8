"""R6: foreign text in requests: Kafka's protocol, HTTP, the command line, and jobs of teams.

As `test_foreign_text.py`: it comes out as it went in, or is refused at once and clearly, and the
node serves as before.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote_from_bytes

import httpx
import msgspec
import pytest
from confluent_kafka import Consumer, TopicPartition
from hypothesis import given
from tests.conftest import RunningNode
from tests.foreign_values import NASTY_TEXTS, WORST, datas, each_of, foreign, texts
from tests.outbox_kit import new_topic
from typer.testing import CliRunner

from dovetail.admin import users
from dovetail.admin.kafka import Kafka
from dovetail.cli.app import app
from dovetail.errors import DovetailError, InvalidInput
from dovetail.kafka.client.brokers import Brokers
from dovetail.kafka.client.client import KafkaClient
from dovetail.teams import FrontEnd
from dovetail.teams.graph import Pipeline
from dovetail.teams.team import Team

pytestmark = pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")

#: A refusal comes at once; this is for a busy machine.
AT_ONCE_S = 10.0


@pytest.fixture(scope="module")
def kafka(node: RunningNode) -> Iterator[KafkaClient]:
    made = KafkaClient(Brokers.at(node.bootstrap), timeout_s=AT_ONCE_S)
    yield made
    made.close()


@pytest.fixture(scope="module")
def topic(node: RunningNode) -> str:
    return new_topic(node.bootstrap, partitions=1)


@contextmanager
def _refused() -> Iterator[None]:
    """What may be refused, but not with an error of another tree, nor by waiting."""
    try:
        yield
    except DovetailError as error:
        assert not error.retriable, f"a refusal that says: try again: {error}"
        assert str(error).encode(), "a refusal that cannot be shown"


@foreign
@each_of(NASTY_TEXTS, group="g", metadata="m")
@given(group=texts, metadata=texts)
def test_ids_of_groups_and_metadata_of_positions(
    kafka: KafkaClient, topic: str, group: str, metadata: str
) -> None:
    """R6: a group of any name keeps its position and the text beside it."""
    place = (topic, 0)
    with _refused():
        kafka.commit(group, {place: 7}, metadata={place: metadata})
        assert kafka.committed(group)[place] == (7, metadata)
    kafka.commit("plain", {place: 1})
    assert kafka.committed("plain")[place] == (1, "")


@foreign
@each_of(NASTY_TEXTS, name="n")
@given(name=texts)
def test_names_of_topics(kafka: KafkaClient, topic: str, name: str) -> None:
    """R6: asked for by a client that checks nothing."""
    with _refused():
        kafka.partitions([name])
    assert kafka.partitions([topic]) == {topic: [0]}


#: Where a name is part of the path.
PATHS = ("topics/{}", "groups/{}", "timelines/{}", "timelines/{}/messages", "dead/{}", "streams/{}")


@foreign
@each_of(WORST, name="n", data=b"d")
@given(name=texts, data=datas)
def test_names_in_paths_of_http(node: RunningNode, name: str, data: bytes) -> None:
    """R6: any bytes in the place of a name are answered, and not by a defect."""
    with httpx.Client(base_url=f"{node.http_url}/v1/", timeout=AT_ONCE_S) as client:
        for path in PATHS:
            for raw in (data[:300], name.encode(errors="surrogatepass")[:300]):
                answer = client.get(path.format(quote_from_bytes(raw, safe="")))
                assert answer.status_code < 500, (path, raw, answer.text)
        posted = client.post("topics", json={"name": name.encode(errors="replace").decode()})
        assert posted.status_code < 500, posted.text
        assert client.get("topics").status_code == 200


COMMANDS = (
    ("topic", "describe", "{}"),
    ("topic", "create", "{}"),
    ("topic", "delete", "{}", "--yes"),
    ("topic", "create", "t", "--config", "{}"),
    ("group", "describe", "{}"),
    ("group", "delete", "{}", "--yes"),
    ("timeline", "describe", "{}"),
    ("timeline", "create", "{}"),
    ("timeline", "schedule", "plain", "{}", "--key", "{}"),
    ("user", "delete", "{}", "--yes"),
    ("access", "allow", "{}", "read", "--topic", "{}"),
    ("transaction", "abort", "{}", "--yes"),
    ("consume", "{}"),
)


@foreign
@each_of(WORST[:-1], name="n")
@given(name=texts)
def test_arguments_of_commands(node: RunningNode, name: str) -> None:
    """R6: an argument that is no text, as the shell hands it over, is an error and no traceback."""
    for command in COMMANDS:
        arguments = [*(part.format(name) for part in command), "--bootstrap", node.bootstrap]
        done = CliRunner().invoke(app, arguments)
        assert isinstance(done.exception, SystemExit | None), (arguments, done.exception)
        assert "Traceback" not in done.output


@foreign
@each_of(NASTY_TEXTS, name="n", password="p")
@given(name=texts, password=texts)
def test_names_and_passwords_of_users(node: RunningNode, name: str, password: str) -> None:
    """R6: who is taken is listed under this very name; a refusal shows nothing of a password."""
    kafka = Kafka(node.bootstrap, AT_ONCE_S, "test")
    try:
        users.set_password(kafka, name, password)
    except InvalidInput as error:
        assert str(error).encode(), "a refusal that cannot be shown"
        assert len(password) < 12 or password not in str(error)
        return
    assert name in [user.user for user in users.list_users(kafka)]
    users.delete_user(kafka, name)
    assert name not in [user.user for user in users.list_users(kafka)]


def _same(job: str) -> str:
    return job


@pytest.fixture(scope="module")
def team(node: RunningNode) -> Iterator[tuple[FrontEnd, Consumer]]:
    """A front end, and a reader of its team's jobs."""
    topic = new_topic(node.bootstrap, partitions=1)
    pipeline = Pipeline("foreign", Team("t", _same, input_topic=topic))
    jobs = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "g"})
    jobs.assign([TopicPartition(topic, 0, 0)])
    with FrontEnd(pipeline, node.bootstrap, timeout_s=AT_ONCE_S) as front:
        yield front, jobs
    jobs.close()


@foreign
@each_of(WORST, payload="p", job_id="i")
@given(payload=texts, job_id=texts)
def test_jobs_of_teams(team: tuple[FrontEnd, Consumer], payload: str, job_id: str) -> None:
    """R6: the id of a job and its payload arrive as they were submitted."""
    front, jobs = team
    with _refused():
        assert front.submit(payload, job_id) == job_id
        # An id made of a foreign key has its raw bytes as surrogates.
        job = jobs.poll(AT_ONCE_S)
        assert job is not None
        assert job.key() == job_id.encode(errors="surrogateescape")
        assert job.value() == msgspec.json.encode(payload)
