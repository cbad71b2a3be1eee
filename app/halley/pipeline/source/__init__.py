"""The log as a PySpark data source: `spark.read.format("halley").load("halley-data")`, batch and streaming.

    source.py      the data source: partitions, a task's rows as Arrow, offsets of a stream
    options.py     its options, and which of its columns a schema chooses
    columns.py     the columns, for Spark and for Arrow, and those that are lifted from payloads
    log.py         the interface of a log: its head, its rows, and the offsets without a row (`open_log` below)
    folder_log.py  the log in a data folder on this machine, also while a server writes it
    http_log.py    a server's log, over `GET /log`, or that of several keepers of a cluster

Ranges of offsets are half-open here: [first, until). Spark's workers import all of these modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from halley.pipeline.errors import JobRejected
from halley.pipeline.source.log import Log


def open_log(options: Mapping[str, str]) -> Log:
    """Return the log in the data folder `path`, or that of the server `url`, with its `token` or `token_file`.

    `url` may have several servers, separated by commas, with one log; `log_id` is then the one that they must have.

    Nothing of the log is read yet. Raises `JobRejected` for options that do not fit together.
    """
    if bool(options.get("path")) == bool(options.get("url")):
        raise JobRejected(
            "the source halley needs a data folder, load(PATH), or the option url of a server: exactly one of the two"
        )
    if options.get("path"):
        from halley.pipeline.source.folder_log import FolderLog

        return FolderLog(options["path"])
    from halley.pipeline.source.http_log import HttpLog

    token = options.get("token")
    if options.get("token_file"):
        if token:
            raise JobRejected("token and token_file exclude each other: give one of the two")
        try:
            token = Path(options["token_file"]).read_text().strip()
        except (OSError, ValueError) as error:
            raise JobRejected(f"the token file {options['token_file']} cannot be read ({error})") from None
    return HttpLog(options["url"], token, options.get("log_id", ""))
