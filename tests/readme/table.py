"""The table of the pages' blocks and the tests that run them; `test_every_block.py` checks it against both."""

from __future__ import annotations

from typing import NamedTuple

from support.readme import blocks_of, page


class Row(NamedTuple):
    """A block, by its page, the title above it and its first line, and what runs it: `FILE::FUNCTION`, or `CI`."""

    page: str
    title: str
    first_line: str
    run_by: str


TOP = "README.md"
HISTORY = "app/halley/history/README.md"
BAYEUX = "app/halley/protocols/bayeux/README.md"
STATIC = "static/README.md"
CLIENT = "static/client/README.md"
ACCESS_PAGE = "app/halley/access/README.md"
EMBED = "app/halley/embed/README.md"
SETTINGS_PAGE = "app/halley/settings/README.md"
WAMP = "app/halley/protocols/wamp/README.md"
NT4 = "app/halley/protocols/nt4/README.md"
EVENTS = "app/halley/protocols/events/README.md"
PIPELINE = "app/halley/pipeline/README.md"
BENCH_PAGE = "tests/bench/README.md"
DEPLOY = "deploy/README.md"
CHAT_PAGE = "deploy/examples/chat/README.md"

CI = ".ci/steps"  # in a fresh clone and unchanged, since these two blocks install what all others run
TOUR = "tests/readme/test_five_minutes.py::"
CODE = "tests/readme/test_server_side_code.py::"
BENCH = "tests/readme/test_bench.py::"
SETTINGS = "tests/readme/test_settings.py::"
PAST = "tests/readme/test_history.py::"
ACCESS = "tests/readme/test_access.py::"
STREAMS = "tests/readme/test_events.py::"
SPARK = "tests/pipeline/"
CHAT = "tests/deploy/test_chat.py::"
NPM = "tests/clients/test_package.py::"

ROWS = {
    "run": Row(TOP, "Run it", "python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/halley serve", CI),
    "demo": Row(TOP, "Run it", ".venv/bin/halley demo", TOUR + "test_the_demo_says_what_to_open"),
    "test": Row(TOP, "Test it", "python3 -m venv .venv && .venv/bin/pip install '.[test]' && .venv/bin/pytest", CI),
    "serve": Row(TOP, "Five minutes more", "halley serve --nt4", TOUR + "test_a_server_is_started"),
    "curl": Row(
        TOP,
        "curl",
        """$ curl -s http://127.0.0.1:8080/events/chat/lobby -d '"hello"'""",
        TOUR + "test_curl",
    ),
    "curl-stream": Row(
        TOP, "curl", "curl -N 'http://127.0.0.1:8080/events/chat/**?last=1'", TOUR + "test_curl_receives"
    ),
    "events-lines": Row(
        EVENTS,
        "Example",
        "curl -N 'http://127.0.0.1:8080/events/orders/**?last=10' -H 'Accept: application/x-ndjson'",
        STREAMS + "test_curl_reads_lines",
    ),
    "events-page": Row(EVENTS, "Example", "<!doctype html>", STREAMS + "test_a_page_resumes_over_a_kill"),
    "chat": Row(TOP, "A page with cometd.js", "<!doctype html>", TOUR + "test_a_chat_with_cometd"),
    "client-install": Row(
        CLIENT, "What it is for", "npm install halley-client", NPM + "test_the_examples_of_the_page_run"
    ),
    "client-orders": Row(
        CLIENT, "Example", 'import { HalleyClient } from "halley-client";', NPM + "test_the_examples_of_the_page_run"
    ),
    "client-stream": Row(
        CLIENT, "Example", 'import { readFile } from "node:fs/promises";', NPM + "test_the_examples_of_the_page_run"
    ),
    "page": Row(STATIC, "Example", "<!doctype html>", TOUR + "test_a_page"),
    "cometd": Row(BAYEUX, "Example", 'import { CometD } from "cometd";', TOUR + "test_a_page_with_cometd"),
    "jsonp": Row(TOP, "A page of scripts", "<!doctype html>", TOUR + "test_a_page_of_scripts"),
    "autobahn": Row(TOP, "A WAMP client", 'import autobahn from "autobahn";', TOUR + "test_a_wamp_client"),
    "robot": Row(TOP, "A robot", "import ntcore", TOUR + "test_a_robot"),
    "robot-curl": Row(
        NT4,
        "Example",
        """$ curl -s http://127.0.0.1:8080/bayeux -d '{"channel":"/robot/speed","data":1}'""",
        TOUR + "test_a_robot",
    ),
    "spark": Row(
        TOP,
        "Spark",
        "pip install '.[pipeline]'        # PySpark, Delta's tables, and a Java for machines that have none",
        SPARK + "test_processes.py::test_from_nothing_to_an_answer",
    ),
    "notebook": Row(
        PIPELINE, "Example", "from halley.pipeline import session", SPARK + "test_processes.py::test_three_lines"
    ),
    "means": Row(
        PIPELINE, "Example", "from pyspark.sql.functions import avg, window", SPARK + "test_sink.py::test_the_example"
    ),
    "service": Row(EMBED, "A service", "def setup(halley):", CODE + "test_a_service_answers_the_sender"),
    "polite": Row(
        TOP, "Server-side code", "def setup(halley):", CODE + "test_the_listener_of_the_top_page_is_the_same"
    ),
    "listener": Row(EMBED, "A listener", "def setup(halley):", CODE + "test_a_listener_changes_and_vetoes"),
    "policy": Row(
        EMBED, "A policy", "from halley.embed import Policy, Refused", CODE + "test_a_policy_answers_the_four_questions"
    ),
    "who": Row(EMBED, "Who asks", "def setup(halley):", CODE + "test_an_authorizer_knows_who_asks"),
    "values": Row(
        EMBED, "What a listener gets", "def setup(halley):", CODE + "test_a_listener_keeps_values_from_other_protocols"
    ),
    "extension": Row(
        EMBED, "An extension", "from halley.embed import Extension", CODE + "test_an_extension_sees_both_ways"
    ),
    "local session": Row(
        EMBED, "A local session", "import asyncio", CODE + "test_a_local_session_publishes_and_subscribes"
    ),
    "program": Row(
        EMBED,
        "Inside your own program",
        "from starlette.applications import Starlette",
        CODE + "test_halley_is_mounted_in_a_program_under_another_server",
    ),
    "history": Row(
        HISTORY,
        "Example",
        "curl -s http://127.0.0.1:8080/bayeux -H 'Content-Type: application/json' "
        """-d '[{"channel":"/chat/lobby","data":"hello"}]'""",
        PAST + "test_the_lines_to_try_work_when_pasted",
    ),
    "record": Row(
        HISTORY, "What is recorded", "[[record]]", PAST + "test_the_first_rule_that_covers_a_channel_decides"
    ),
    "twice": Row(
        HISTORY,
        "Publishing twice",
        "curl -s http://127.0.0.1:8080/bayeux "
        """-d '{"channel":"/orders","data":{"id":7},"ext":{"idempotency_key":"order 7"}}'""",
        PAST + "test_a_repeat_is_answered_as_the_first_and_delivers_nothing",
    ),
    "source": Row(
        PIPELINE,
        "The source",
        "from pyspark.sql import SparkSession",
        SPARK + "test_plain_session.py::test_by_spark_submit",
    ),
    "lift": Row(PIPELINE, "Lifted columns", "[[lift]]", SPARK + "test_readme.py::test_the_settings_are_accepted"),
    "mismatches": Row(
        PIPELINE,
        "Lifted columns",
        "halley lake sql 'select column_name, kind, sum(events) as events from mismatches group by all'",
        SPARK + "test_sql.py::test_it_can_be_asked_what_columns_could_not_take",
    ),
    "settings": Row(SETTINGS_PAGE, "Example", "port = 8080", SETTINGS + "test_a_file_says_what_holds"),
    "access": Row(ACCESS_PAGE, "Example", "[[access]]", ACCESS + "test_the_rules_do_what_the_readme_says"),
    "own": Row(ACCESS_PAGE, "Channels of one's own", "[[access]]", ACCESS + "test_each_has_channels_of_its_own"),
    "access-asked": Row(
        ACCESS_PAGE,
        "Example",
        "$ halley check-config --role member --verb publish --channel /chat/lobby",
        ACCESS + "test_check_config_says_what_the_readme_says",
    ),
    "jwt": Row(ACCESS_PAGE, "JSON Web Tokens", "[jwt]", ACCESS + "test_the_jwt_example_is_a_settings_file"),
    "lazy": Row(BAYEUX, "Lazy events", "[[lazy]]", SETTINGS + "test_lazy_channels"),
    "replay": Row(
        BAYEUX,
        "Replay",
        """post() { curl -s -H 'Content-Type: application/json' http://127.0.0.1:8080/bayeux -d "$1"; echo; }""",
        PAST + "test_curl_replays",
    ),
    "get_events": Row(
        WAMP,
        "Example",
        """subscription = await session.call("wamp.subscription.lookup", "chat", {"match": "prefix"})""",
        "tests/readme/test_wamp.py::test_autobahn_reads_the_history",
    ),
    "realms": Row(WAMP, "Realms", "[[realm]]", SETTINGS + "test_realms_and_users"),
    "bench": Row(
        BENCH_PAGE,
        "Example",
        "halley bench fanout --receivers 1000 --rate 4      # each publish goes to 1,000 held polls",
        BENCH + "test_each_line_measures",
    ),
    "bench-crossbar": Row(
        BENCH_PAGE,
        "WAMP",
        "python3 -m venv peer && peer/bin/pip install crossbar && python tests/bench wamp --crossbar peer/bin/crossbar",
        BENCH + "test_beside_crossbar",
    ),
    "bench-ntcore": Row(
        BENCH_PAGE,
        "NetworkTables",
        "python3 -m venv peer && peer/bin/pip install pyntcore && "
        "python tests/bench nt4 --history on --ntcore peer/bin/python",
        BENCH + "test_beside_ntcore",
    ),
    "one-server": Row(
        DEPLOY, "One server", 'proxies = ["127.0.0.1"]          # nginx', SETTINGS + "test_one_server_behind_nginx"
    ),
    "chat-run": Row(
        CHAT_PAGE,
        "All at once",
        ". .venv/bin/activate && deploy/examples/chat/run",
        CHAT + "test_one_command_runs_it_and_ends_it",
    ),
    "chat-secret": Row(
        CHAT_PAGE, "1. A secret and a certificate", "mkdir -p data/tls data/nginx", CHAT + "test_the_page_whole"
    ),
    "chat-users": Row(
        CHAT_PAGE,
        "2. Two users",
        '$ echo "analytical engine" | python backend.py add ada',
        CHAT + "test_the_page_whole",
    ),
    "chat-rules": Row(
        CHAT_PAGE,
        "3. Who may do what",
        "[[access]]                        # rooms: every user may read and write",
        CHAT + "test_excerpts_are_what_the_files_have",
    ),
    "chat-ask": Row(
        CHAT_PAGE, "3. Who may do what", "$ halley check-config | grep jwt.audience", CHAT + "test_the_page_whole"
    ),
    "chat-halley": Row(CHAT_PAGE, "4. Start it", "halley serve", CHAT + "test_the_page_whole"),
    "chat-backend": Row(CHAT_PAGE, "4. Start it", "python backend.py serve", CHAT + "test_the_page_whole"),
    "chat-nginx": Row(
        CHAT_PAGE,
        "4. Start it",
        'nginx -p "$PWD" -c nginx.conf -e data/nginx-error.log -g "daemon off; user $(id -un);"',
        CHAT + "test_the_page_whole",
    ),
    "chat-login": Row(
        CHAT_PAGE,
        "5. Log in",
        "$ curl -s --cacert data/tls/cert.pem https://localhost:8443/token",
        CHAT + "test_the_page_whole",
    ),
    "chat-wrong": Row(
        CHAT_PAGE,
        "5. Log in",
        "$ curl -s --cacert data/tls/cert.pem https://localhost:8443/history/chat/user/alan "
        """-H "Authorization: Bearer $(cat data/token)\"""",
        CHAT + "test_the_page_whole",
    ),
    "chat-follow": Row(
        CHAT_PAGE, "6. Talk", "async function follow(pattern) {", CHAT + "test_excerpts_are_what_the_files_have"
    ),
    "chat-sender": Row(CHAT_PAGE, "6. Talk", "def setup(halley):", CHAT + "test_excerpts_are_what_the_files_have"),
    "published": Row(
        DEPLOY,
        "Published versions",
        "pip install halley-server && halley serve",
        "tests/deploy/test_release.py::test_a_fresh_python_installs_it_and_serves",
    ),
    "docker": Row(
        DEPLOY,
        "Published versions",
        "docker run --rm -p 127.0.0.1:8080:8080 -v halley-data:/data -e HALLEY_CONFIG= "
        "ghcr.io/OWNER/halley serve --open",
        "tests/deploy/test_image.py::test_it_serves_by_the_line_of_the_page",
    ),
    "proxies": Row(DEPLOY, "Proxies", 'proxies = ["10.0.0.0/8", "192.0.2.7"]', SETTINGS + "test_behind_a_proxy"),
}


def block(name: str) -> str:
    """Return the text of the block with that name."""
    row = ROWS[name]
    (found,) = (
        each for each in blocks_of(page(row.page)) if (each.title, each.first_line) == (row.title, row.first_line)
    )
    return found.text
