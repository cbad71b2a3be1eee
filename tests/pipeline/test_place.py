"""Where a lake is: what names a folder or a store, and what a store's errors are called."""

from pathlib import Path

import pytest

from halley.pipeline.errors import JobRejected
from halley.pipeline.jobs.run import consumer
from halley.pipeline.lake.place import ObjectPath, place_of, reason, state_folder


def test_a_path_is_a_folder_and_a_url_a_store():
    """A store's URL is used like a path; a slash at its end makes no difference."""
    assert place_of("lake/a b") == Path("lake/a b")
    lake = place_of("s3://bucket/some/lake/")
    assert lake == ObjectPath("s3://bucket/some/lake")
    table = lake.absolute() / "events"
    assert (str(table), table.name, table.parent, table.key) == (
        "s3://bucket/some/lake/events",
        "events",
        lake,
        "bucket/some/lake/events",
    )
    assert consumer("lake", lake) != consumer("lake", place_of("s3://bucket/some/other"))


@pytest.mark.parametrize(
    "text",
    ["s3://", "s3://key:secret@bucket/lake", "s3a://bucket/x", "http://host/x", "s3://b/a?secret=1", "s3://b/a%20"],
)
def test_another_url_is_refused_and_not_repeated(text):
    """What cannot be a lake's place is refused, and the sentence has nothing of it, since there may be a key in it."""
    with pytest.raises(JobRejected, match=r"a lake's place is a folder, or s3://BUCKET/PATH") as refused:
        place_of(text)
    assert "secret" not in str(refused.value).lower().replace("aws_secret", "")


def test_what_jobs_keep_beside_a_store_is_in_a_folder_of_the_user(monkeypatch):
    """Each lake has its own; that of a folder is the lake itself."""
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert state_folder(Path("/lake")) == Path("/lake")
    one, other = (state_folder(place_of(f"s3://bucket/{name}")) for name in ("one", "other"))
    assert one.parent == other.parent == Path("/state/halley/lakes")
    assert one != other


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Generic S3 error: ... <Code>NoSuchBucket</Code>", "there is no such bucket"),
        ("Generic S3 error: ... <Code>ExpiredToken</Code>", "the token in AWS_SESSION_TOKEN has expired"),
        ("When listing ...: AWS Error ACCESS_DENIED during ListObjectsV2", "the store refuses the key"),
        ("Generic S3 error: ... error trying to connect: tcp connect error", "the store does not answer"),
        ("No space left on device", None),
        ("Permission denied (os error 13)", None),
    ],
)
def test_a_stores_error_is_put_into_words(text, words):
    """Errors of stores are long, and quote what a request had; those of a disk stay as they are."""
    found = reason(OSError(text))
    assert found is None if words is None else found.startswith(words)
