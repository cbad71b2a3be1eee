"""Results reach the server exactly once, after any number of attempts; and what is reported if they cannot."""

import asyncio
import signal
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from support.process import launched
from support.server import brisk, serving
from support.tcp_proxy import relaying
from support.wire import DEADLINE_S

from halley.access.tokens import hash_of, new_token
from halley.client import ALL, Client, IdempotentPublish
from halley.pipeline.errors import JobFailed, JobRejected
from halley.pipeline.jobs.publishing import Publisher, Unpublished, key_of

ALL_PUBLISHED = Unpublished(refused=0, before=0)


def recording(folder):
    """Run a server with a history in `folder`."""
    return serving(brisk(data_dir=str(folder / "data"), history={"enabled": True, "free_bytes": 0}))


def messages(first, last):
    """Return messages with the numbers `first` to `last`, each with its own key."""
    return [
        IdempotentPublish(f"/stats/10s/c{number}", number, key_of("test", number)) for number in range(first, last + 1)
    ]


async def publish(publisher, some):
    """Publish in a thread, as a job does."""
    async with asyncio.timeout(DEADLINE_S):
        return await asyncio.to_thread(publisher.publish, some)


@asynccontextmanager
async def publishing(url, token=None, publish_s=DEADLINE_S):
    """Yield a publisher, and close it at the end."""
    publisher = Publisher(url, token, publish_s)
    try:
        yield publisher
    finally:
        await asyncio.to_thread(publisher.close)


async def heard(client, count):
    """Return the data of the next `count` events."""
    async with asyncio.timeout(DEADLINE_S):
        return [(await anext(client)).data for _ in range(count)]


def test_keys_fit_and_differ():
    """A key has at most 128 characters, for channels of any length, and those of two channels differ."""
    keys = {key_of("rollup", "10s", 1_800_000_000, "final", "x" * length) for length in (1, 2, 255, 10_000)}
    assert len(keys) == 4
    assert max(map(len, keys)) <= 128


async def test_the_next_server_is_published_to_where_one_does_not_answer(tmp_path, monkeypatch):
    """Of several nodes one may be down, at first and later."""
    monkeypatch.setattr("halley.pipeline.jobs.publishing._TRY_S", 0.2)
    async with (
        recording(tmp_path) as served,
        relaying(served.port) as proxy,
        Client(served.url) as client,
        publishing(f"http://127.0.0.1:9,http://127.0.0.1:{proxy.port},{served.url}") as publisher,
    ):
        await client.subscribe("/stats/**")
        assert await publish(publisher, messages(1, 1)) == ALL_PUBLISHED
        proxy.cut()
        assert await publish(publisher, messages(2, 2)) == ALL_PUBLISHED
        assert await heard(client, 2) == [1, 2]


async def test_what_got_no_answer_is_published_again_and_heard_once(tmp_path):
    """If the server has accepted a publish but its response is lost, its repeat under the same key is not delivered."""
    async with (
        recording(tmp_path) as served,
        relaying(served.port) as proxy,
        Client(served.url) as client,
        publishing(f"http://127.0.0.1:{proxy.port}") as publisher,
    ):
        await client.subscribe("/stats/**")
        assert await publish(publisher, messages(1, 1)) == ALL_PUBLISHED
        proxy.loses_answers = True
        task = asyncio.create_task(publish(publisher, messages(2, 3)))
        assert await heard(client, 3) == [1, 2, 3]
        await served.until(lambda: proxy.vanished > 0)
        proxy.cut()
        proxy.loses_answers = False
        proxy.mend()
        assert await task == ALL_PUBLISHED
        await publish(publisher, messages(4, 4))
        assert await heard(client, 1) == [4]


async def test_a_server_that_is_restarted_gets_all_and_a_subscriber_each_once(tmp_path):
    """The server is killed and restarted on its data during publishing: no event is missing or duplicated."""
    where = ("--data-dir", str(tmp_path / "data"))
    async with launched(*where, cwd=tmp_path) as server:
        port, url = server.port, f"http://127.0.0.1:{server.port}"
        async with publishing(url) as publisher:
            await publish(publisher, messages(1, 5))
            server.send_signal(signal.SIGKILL)
            await server.exit_code()
            task = asyncio.create_task(publish(publisher, messages(1, 300)))  # as a job that was killed too
            async with (
                launched(*where, "--port", str(port), "--operations-port", "0", cwd=tmp_path),
                Client(url) as client,
            ):
                await client.subscribe("/stats/**", after=ALL)
                assert await heard(client, 300) == list(range(1, 301))
                assert await task == ALL_PUBLISHED
                await publish(publisher, [IdempotentPublish("/stats/end", "end", "end")])
                assert await heard(client, 1) == ["end"]


async def test_a_server_that_stays_away_ends_the_job_in_a_sentence():
    """Without progress for `publish_s` seconds the job fails with the client's last error."""
    async with relaying(1) as proxy:
        proxy.cut()
        async with publishing(f"http://127.0.0.1:{proxy.port}", publish_s=1) as publisher:
            with pytest.raises(JobFailed, match=r"nothing could be published to http://127.0.0.1:.* for 1 s: "):
                await publish(publisher, messages(1, 1))


async def test_who_may_not_publish_is_told_what_is_missing(tmp_path):
    """A token without the right to publish is reported with the missing right."""
    token = new_token()
    (tmp_path / "halley.toml").write_text(
        f'[[tokens]]\nid = "p"\nrole = "p"\nhash = "{hash_of(token)}"\n'
        '[[access]]\nrole = "p"\nverb = "publish"\npattern = "/room/**"\n'
    )
    arguments = ("--data-dir", str(tmp_path / "data"), "--config", str(tmp_path / "halley.toml"))
    async with launched(*arguments, cwd=tmp_path) as server:
        url = f"http://127.0.0.1:{server.port}"
        async with publishing(url, token) as publisher:
            with pytest.raises(
                JobFailed, match=r"does not let the pipeline publish to /stats/10s/c1 .*may publish below"
            ):
                await publish(publisher, messages(1, 1))


async def test_a_channel_that_the_server_does_not_take_is_counted_and_the_others_are_published(tmp_path):
    """A channel whose name is too long below /stats/10s does not stop the others."""
    async with recording(tmp_path) as served, Client(served.url) as client, publishing(served.url) as publisher:
        await client.subscribe("/stats/**")
        long = IdempotentPublish("/stats/10s/" + "x" * 250, 0, "long")
        assert await publish(publisher, [*messages(1, 2), long, *messages(3, 4)]) == Unpublished(refused=1, before=0)
        assert await heard(client, 4) == [1, 2, 3, 4]


async def test_what_was_published_before_with_other_figures_counts_as_published(tmp_path):
    """A job that was killed may come to others; those that were heard stay, and what follows is published."""
    async with recording(tmp_path) as served, Client(served.url) as client, publishing(served.url) as publisher:
        await client.subscribe("/stats/**")
        assert await publish(publisher, messages(1, 2)) == ALL_PUBLISHED
        first, second, *others = messages(1, 4)
        elsewhere = replace(others[1], channel="/stats/10s/elsewhere", key=second.key)
        again = [replace(first, data=1.0), replace(second, data=2.5), others[0], elsewhere]
        assert await publish(publisher, again) == Unpublished(refused=0, before=2)
        assert await heard(client, 3) == [1, 2, 3]


async def test_what_is_remembered_is_found_without_its_data(tmp_path):
    """With data and without, also where these are null; and nothing is published."""
    async with recording(tmp_path) as served, Client(served.url) as client, publishing(served.url) as publisher:
        await client.subscribe("/**")
        known = [
            IdempotentPublish("/a", {"n": 1}, "object"),
            IdempotentPublish("/a", None, "null"),
            IdempotentPublish("/a", 0, "zero"),
        ]
        assert await publish(publisher, known) == ALL_PUBLISHED
        asked = [
            known[0],
            IdempotentPublish("/a", {"n": 1}, "new"),
            *known[1:],
            IdempotentPublish("/a/*", 1, "refused"),
        ]
        found = await asyncio.to_thread(publisher.remembered, asked)
        assert found == [True, False, True, True, False]
        await publish(publisher, [IdempotentPublish("/end", "end", "end")])
        assert await heard(client, 4) == [{"n": 1}, None, 0, "end"]


def test_what_is_no_url_is_refused_at_once():
    """An invalid URL is refused before anything is published."""
    with pytest.raises(JobRejected, match="--server nonsense: expected a URL"):
        Publisher("nonsense", None, 1)


async def test_a_limited_rate_is_waited_for_in_order(tmp_path):
    """What the server refuses for its rate is published a little later, and nothing after it before it."""
    settings = brisk(
        data_dir=str(tmp_path / "data"),
        history={"enabled": True, "free_bytes": 0},
        limits={"publishes_per_s": 200, "publish_burst": 20},
    )
    async with serving(settings) as served, Client(served.url) as client, publishing(served.url) as publisher:
        await client.subscribe("/stats/**")
        assert await publish(publisher, messages(1, 150)) == ALL_PUBLISHED
        assert await heard(client, 150) == list(range(1, 151))


async def test_a_busy_server_is_asked_again_when_it_says(tmp_path):
    """After 429 with Retry-After the publisher waits that long, longer than one try of the client's may take."""
    asked = asyncio.Event()

    async def refuse(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        writer.write(head)
        writer.close()
        asked.set()

    async with (
        await asyncio.start_server(refuse, "127.0.0.1", 0) as busy,
        recording(tmp_path) as served,
        relaying(busy.sockets[0].getsockname()[1]) as proxy,
        Client(served.url) as client,
        publishing(f"http://127.0.0.1:{proxy.port}") as publisher,
    ):
        await client.subscribe("/stats/**")
        task = asyncio.create_task(publish(publisher, messages(1, 3)))
        await asyncio.wait_for(asked.wait(), DEADLINE_S)
        proxy.server_port = served.port
        assert await task == ALL_PUBLISHED
        assert await heard(client, 3) == [1, 2, 3]


async def test_what_the_server_remembers_is_asked_without_publishing_anything(tmp_path):
    """Only what was published with its key is remembered; to ask for the others publishes nothing."""
    async with recording(tmp_path) as served, Client(served.url) as client, publishing(served.url) as publisher:
        await client.subscribe("/stats/**")
        await publish(publisher, messages(2, 3))
        known = await asyncio.to_thread(publisher.remembered, messages(1, 4))
        assert known == [False, True, True, False]
        await publish(publisher, messages(5, 5))
        assert await heard(client, 3) == [2, 3, 5]
