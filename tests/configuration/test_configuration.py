"""Settings: defaults < file < environment < flags; values are checked, and mistakes named by place, key and need."""

from __future__ import annotations

import math
import re
from dataclasses import fields, is_dataclass
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.readme import ROOT

from halley import settings as declarations
from halley.configuration import KNOBS, BadSettings, load, roles_unproved, unnamed_roles
from halley.configuration.sources import NOT_SETTINGS, key_lines
from halley.settings import Settings

VARIABLE = re.compile(r"\bHALLEY_[A-Z0-9_]+\b")


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Returns a function that writes `halley.toml` into an empty working directory and returns its path."""
    monkeypatch.chdir(tmp_path)

    def write(text):
        Path("halley.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
        return Path("halley.toml")

    return write


def problems(file=None, environment=None, flags=None):
    """Return all mistakes as they would be printed."""
    with pytest.raises(BadSettings) as caught:
        load(file, environment or {}, flags or {})
    return str(caught.value).splitlines()


def test_without_a_word_everything_is_as_declared():
    """Without any source all settings have their declared defaults, and the place "default"."""
    configuration = load(None, {"PATH": "/bin"}, {})
    assert configuration.settings == Settings()
    assert set(configuration.places.values()) == {"default"}


def test_each_source_outdoes_the_one_before(write):
    """Defaults < file < environment < flags, for each setting; each has the place of its source."""
    file = write("port = 1\nhost = '127.0.0.1'\n[bayeux]\nhold_s = 2\ninterval_s = 2\n")
    configuration = load(file, {"HALLEY_PORT": "3", "HALLEY_BAYEUX_HOLD_S": "3.5"}, {"port": 4})
    settings, places = configuration.settings, configuration.places
    assert (settings.port, settings.bayeux.hold_s, settings.bayeux.interval_s) == (4, 3.5, 2.0)
    assert places["port"] == "--port"
    assert places["bayeux.hold_s"] == "HALLEY_BAYEUX_HOLD_S"
    assert places["bayeux.interval_s"] == "halley.toml:5"
    assert places["host"] == "halley.toml:2"
    assert places["sweep_s"] == "default"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("true", True),
        ("ON", True),
        ("1", True),
        ("yes", True),
        ("false", False),
        ("off", False),
        ("0", False),
        ("No", False),
    ],
)
def test_booleans_in_the_environment_have_many_names(text, expected):
    """True/false, on/off, 1/0 and yes/no, in any case."""
    assert load(None, {"HALLEY_BAYEUX_TIMESTAMP": text}, {}).settings.bayeux.timestamp is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("/a", ("/a",)), ("/a,/b", ("/a", "/b")), (" /a , /b ,", ("/a", "/b"))],
)
def test_lists_in_the_environment_are_separated_by_commas(text, expected):
    """Blanks around the items are ignored."""
    assert load(None, {"HALLEY_BAYEUX_PATHS": text}, {}).settings.bayeux.paths == expected


def test_an_empty_variable_is_an_empty_list():
    """So a list that the file sets can be made empty."""
    assert load(None, {"HALLEY_CORS_ORIGINS": ""}, {}).settings.cors.origins == ()


def test_a_whole_number_is_good_where_a_number_is_wanted(write):
    """25 is accepted for 25.0; the setting is a float all the same."""
    hold_s = load(write("bayeux.hold_s = 25"), {}, {}).settings.bayeux.hold_s
    assert isinstance(hold_s, float)
    assert hold_s == 25


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('port = "http"', 'halley.toml:1: port: expected a whole number from 0 to 65535, found "http"'),
        ("\n\nport = 70000", "halley.toml:3: port: expected a whole number from 0 to 65535, found 70000"),
        ("port = true", "halley.toml:1: port: expected a whole number from 0 to 65535, found true"),
        ("port = 1.0", "halley.toml:1: port: expected a whole number from 0 to 65535, found 1.0"),
        ("[port]\nx = 1", "halley.toml:1: port: expected a whole number from 0 to 65535, found a table"),
        ("host = 1", "halley.toml:1: host: expected a string, found 1"),
        ("open = 1", "halley.toml:1: open: expected true or false, found 1"),
        ('open = "yes"', 'halley.toml:1: open: expected true or false, found "yes"'),
        ("sweep_s = nan", "halley.toml:1: sweep_s: expected a number of at least 0.01 (s), found NaN"),
        ("sweep_s = inf", "halley.toml:1: sweep_s: expected a number of at least 0.01 (s), found Infinity"),
        ("sweep_s = 0", "halley.toml:1: sweep_s: expected a number of at least 0.01 (s), found 0"),
        ("sweep_s = false", "halley.toml:1: sweep_s: expected a number of at least 0.01 (s), found false"),
        (
            "[limits]\nheaders = 2",
            "halley.toml:2: limits.headers: expected a whole number of at least 8 (headers), found 2",
        ),
        ('hosts = "a"', 'halley.toml:1: hosts: expected a list of strings, found "a"'),
        ("hosts = [\n 'a',\n 1\n]", 'halley.toml:1: hosts: expected a list of strings, found ["a", 1]'),
        (
            '[log]\nlevel = "loud"',
            'halley.toml:2: log.level: expected one of "debug", "info", "warning", "error", found "loud"',
        ),
        ("load = [2026-01-01]", 'halley.toml:1: load: expected a list of strings, found ["2026-01-01"]'),
        ("bayeux = 3", "halley.toml:1: bayeux: expected a table"),
        ("[[bayeux]]\nhold_s = 1", "halley.toml:1: bayeux: expected a table"),
        ("prot = 1", "halley.toml:1: prot: no such setting; did you mean port?"),
        ("hold_s = 1", "halley.toml:1: hold_s: no such setting; did you mean bayeux.hold_s?"),
        (
            "[bayeux]\n# why\nholds = 1",
            "halley.toml:3: bayeux.holds: no such setting; did you mean bayeux.hold_s?",
        ),
        ("[bayuex]\nhold_s = 1\nx = 2", "halley.toml:1: [bayuex]: no such table; did you mean [bayeux]?"),
        ("xyzzy = 1", "halley.toml:1: xyzzy: no such setting"),
        ('"bayeux.hold_s" = 1', 'halley.toml:1: "bayeux.hold_s": no such setting; did you mean bayeux.hold_s?'),
        ("port = 1\nport = 2", "halley.toml:2: expected TOML: Cannot overwrite a value"),
        ("port = 1\nhost = halley\n", "halley.toml:2: expected TOML: Invalid value"),
        ("hosts = ['a'\n\n", "halley.toml:1: expected TOML: Unclosed array"),
        (b"port = 1\n# \xff", "halley.toml:2: expected UTF-8 text"),
    ],
)
def test_a_mistake_in_the_file_is_named_by_line_key_and_need(write, text, problem):
    """One line for the operator: the place, the setting, what was expected and what was found."""
    assert problems(write(text)) == [problem]


def test_all_mistakes_are_told_at_once(write):
    """Those of the file, the environment and the command line are reported together, in that order."""
    file = write('port = "x"\n[bayeux]\nhold_s = -1\nwhat = 1\n[cookie]\nsecure = "maybe"\n')
    environment = {"HALLEY_OPEN": "perhaps", "HALLEY_BAYEUX_HOLDS": "1", "HALLEY_LIMITS_NODES": "many"}
    assert problems(file, environment, {"operations.port": -1}) == [
        'halley.toml:1: port: expected a whole number from 0 to 65535, found "x"',
        "halley.toml:3: bayeux.hold_s: expected a number of at least 0 (s), found -1",
        "halley.toml:4: bayeux.what: no such setting",
        'halley.toml:6: cookie.secure: expected one of "auto", "on", "off", found "maybe"',
        'HALLEY_OPEN: open: expected true or false, found "perhaps"',
        "HALLEY_BAYEUX_HOLDS: no such setting; did you mean HALLEY_BAYEUX_HOLD_S?",
        'HALLEY_LIMITS_NODES: limits.nodes: expected a whole number of at least 64 (JSON values), found "many"',
        "--operations-port: operations.port: expected a whole number from 0 to 65535, found -1",
    ]


def test_mistakes_of_every_kind_are_told_at_once(write):
    """Wrong names and types do not hide what is wrong between settings; each mistake has its line."""
    file = write(
        "prot = 8080\n[bayeux]\nhold_s = 'x'\n[cors]\norigins = 'a'\n[jwt]\nissuer = 'https://x'\n"
        "[[access]]\nrole = 'member'\nverb = 'reed'\npattern = '/a/**/b'\n"
        "[[access]]\nrole = 'member'\nverb = 'publish'\npattern = 'a'\n"
        "[[tokens]]\nid = 'ada'\nrole = 'member'\nhash = 'sha256:00'\n"
    )
    found = problems(file)
    assert [line.split(": ")[0] for line in found] == [f"halley.toml:{line}" for line in (1, 3, 5, 10, 11, 15, 19, 7)]
    assert [line.split(": ")[1] for line in found] == [
        "prot",
        "bayeux.hold_s",
        "cors.origins",
        "access.verb",
        "access.pattern",
        "access.pattern",
        "tokens.hash",
        "jwt.issuer",
    ]


@pytest.mark.parametrize("wrong", ["host = 1", "port = 'x'"])
def test_a_mistake_hides_none_whose_text_has_a_word_like_its_name(wrong, write):
    """`host` is a setting, and a word in what is expected of others."""
    file = write(f"{wrong}\n[cors]\norigins = ['a']\n[nt4]\nhost = ''\n")
    assert [line.split(": ")[1] for line in problems(file)[1:]] == ["nt4.host", "cors.origins"]


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("port = 'x'\n[operations]\nport = 8080\n", "port"),
        ("open = 1\nproxies = ['10.0.0.1']\n", "open"),
        ("host = '0.0.0.0'\n[[access]]\nrole = 'a'\nverb = 'reed'\npattern = '/a'\n", "access.verb"),
        ("host = '0.0.0.0'\naccess = 1\n", "access"),
        ("host = '0.0.0.0'\n[[access]]\nrole = 'a'\nverb = '*'\n", "[[access]]"),
        ("[tls]\nkey = 'k.pem'\ncert = 1\n", "tls.cert"),
        ("[jwt]\nissuer = 'x'\njwks = 1\n", "jwt.jwks"),
    ],
)
def test_a_mistake_makes_no_other(text, mistake, write):
    """What depends on a setting that is wrong is not called wrong for that."""
    (line,) = problems(write(text))
    assert line.split(": ")[1] == mistake


def test_a_role_that_no_rule_names_is_found(write):
    """The key of the token or of the JWT's role that has it; where there are no rules, no role is missing from them."""
    tokens = f"[jwt]\nrole = 'guest'\n[[tokens]]\nid = 'ada'\nrole = 'memberr'\nhash = 'sha256:{'0' * 64}'\n"
    assert [*unnamed_roles(load(write(tokens), {}, {}).settings)] == []
    rules = "".join(f"[[access]]\nrole = '{role}'\nverb = '*'\npattern = '/**'\n" for role in ("*", "member"))
    assert [*unnamed_roles(load(write(tokens + rules), {}, {}).settings)] == [
        ("tokens[0].role", 'no access rule names the role "memberr"; did you mean "member"?'),
        ("jwt.role", 'no access rule names the role "guest"'),
    ]


def test_a_role_that_nobody_can_have_is_found(write):
    """No token and no user gives it; anonymous clients and those of NetworkTables have theirs."""
    roles = ("*", "anonymous", "nt4", "member", "staff", "memberr")
    rules = "".join(f"[[access]]\nrole = '{role}'\nverb = '*'\npattern = '/**'\n" for role in roles)
    tokens = f"[[tokens]]\nid = 'ada'\nrole = 'member'\nhash = 'sha256:{'0' * 64}'\n"
    assert roles_unproved(load(write(rules + tokens), {}, {}).settings) == {"staff", "memberr"}
    assert roles_unproved(load(write(tokens), {}, {}).settings) == set()
    issuer = "[jwt]\nissuer = 'x'\naudience = 'y'\nsecret = 'z'\n"
    assert roles_unproved(load(write(issuer + rules + tokens), {}, {}).settings) == set()


def test_a_value_that_is_outdone_must_be_right_all_the_same(write):
    """A mistake in the file is reported even if a flag overrides it: without the flag it would take effect."""
    assert problems(write("port = -1"), flags={"port": 1}) == [
        "halley.toml:1: port: expected a whole number from 0 to 65535, found -1"
    ]


def test_a_long_value_is_cut_where_it_is_shown():
    """A very long value, such as a whole file, does not fill the terminal."""
    [problem] = problems(None, {"HALLEY_PORT": "x" * 10_000})
    assert problem == f'HALLEY_PORT: port: expected a whole number from 0 to 65535, found "{"x" * 59}...'


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda path: None, "halley.toml: cannot be read: No such file or directory"),
        (lambda path: path.mkdir(), "halley.toml: cannot be read: Is a directory"),
        (
            lambda path: path.write_text("port = " + "9" * 5_000),
            "halley.toml: cannot be read: a number is too long, or arrays are too deep",
        ),
        (
            lambda path: path.write_text("port = " + "[" * 5_000),
            "halley.toml: cannot be read: a number is too long, or arrays are too deep",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, monkeypatch, make, problem):
    """A file that was named must be readable."""
    monkeypatch.chdir(tmp_path)
    make(Path("halley.toml"))
    assert problems(Path("halley.toml")) == [problem]


def test_variables_that_others_read_are_no_settings():
    """The command line itself reads three, and the installation one, which is often still set when it is tried."""
    assert load(None, dict.fromkeys(NOT_SETTINGS, "anything"), {}).settings == Settings()
    programs = [path for folder in ("app", "deploy") for path in (ROOT / folder).rglob("*.py")]
    read = {name for path in programs for name in VARIABLE.findall(path.read_text(encoding="utf-8"))}
    of_spark = {"HALLEY_SPARK_LOG", "HALLEY_SPARK_NICENESS"}  # only the process of Java has them
    assert read - of_spark - {knob.variable for knob in KNOBS.values()} == NOT_SETTINGS


PROXY_NEED = "expected addresses, or networks like 10.0.0.0/8"
NODE = 'cluster = {{urls = ["nats://a"], node = "a", {} = "{}"}}'
ORIGIN_NEED = "expected scheme://host[:port] without a path"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        # cors: credentials travel with requests, so an origin must be one (S19-S21)
        ('tls.key = "a.pem"', "tls.key: expected tls.cert (--tls-cert) too"),
        (
            NODE.format("listen", "8090"),
            'cluster.listen: expected host:port, found "8090"',
        ),
        (
            NODE.format("listen", "10.0.0.5:80900"),
            'cluster.listen: expected host:port, found "10.0.0.5:80900"',
        ),
        (
            NODE.format("listen", "0.0.0.0:8090"),
            "cluster.listen: expected cluster.advertise too, as 0.0.0.0:8090 names no host",
        ),
        (
            NODE.format("advertise", "https://a:1"),
            'cluster.advertise: expected a URL like http://10.0.0.5:8090, found "https://a:1"',
        ),
        (NODE.format("password_file", "a"), "cluster.password_file: expected cluster.user too"),
        ('proxies = ["proxy"]\nopen = true', f'proxies: {PROXY_NEED}, found "proxy"'),
        ('proxies = ["10.0.0.1/8"]\nopen = true', f'proxies: {PROXY_NEED}, found "10.0.0.1/8"'),
        ('proxies = ["::/0"]\nopen = true', "proxies: ::/0 is every address: any client could claim any address"),
        (
            'proxies = ["10.0.0.0/8"]',
            "proxies: expected open = true (--open) too, as proxies let others read and publish everything",
        ),
        (
            'cors.origins = ["*"]',
            'cors.origins: "*" cannot be allowed, since requests carry credentials: list each origin',
        ),
        (
            'cors.origins = ["null"]',
            'cors.origins: "null" cannot be allowed, since requests carry credentials: list each origin',
        ),
        ('cors.origins = ["https://a.b/"]', f'cors.origins: {ORIGIN_NEED}, found "https://a.b/"'),
        ('cors.origins = ["a.b"]', f'cors.origins: {ORIGIN_NEED}, found "a.b"'),
        ('cors.origins = ["https://*.a.b"]', f'cors.origins: {ORIGIN_NEED}, found "https://*.a.b"'),
        ('cors.origins = ["https://a.b:99999"]', f'cors.origins: {ORIGIN_NEED}, found "https://a.b:99999"'),
        ('cors.origins = ["https://u@a.b"]', f'cors.origins: {ORIGIN_NEED}, found "https://u@a.b"'),
        (
            'cors.origins = ["https://a.b:443"]',
            'cors.origins: expected "https://a.b", since browsers omit the default port, found "https://a.b:443"',
        ),
        # where to listen
        ('host = ""', 'host: expected a host name or an address without a port, found ""'),
        ('host = "a b"', 'host: expected a host name or an address without a port, found "a b"'),
        (
            'operations.host = "http://a"',
            'operations.host: expected a host name or an address without a port, found "http://a"',
        ),
        (
            'host = "0.0.0.0"',
            (
                "host: expected access rules ([[access]]) or open = true (--open) too, as 0.0.0.0 lets other machines "
                "read and publish everything"
            ),
        ),
        ("operations.port = 8080", "operations.port: expected another port than port (8080)"),
        ('nt4.host = "ws://a"', 'nt4.host: expected a host name or an address without a port, found "ws://a"'),
        (
            'nt4 = {enabled = true, host = "0.0.0.0"}',
            (
                "nt4.host: expected access rules ([[access]]) or open = true (--open) too, as 0.0.0.0 lets other "
                "machines read and publish everything"
            ),
        ),
        ("nt4 = {enabled = true, port = 8080}", "nt4.port: expected another port than port (8080)"),
        ("nt4 = {enabled = true, port = 8081}", "nt4.port: expected another port than operations.port (8081)"),
        (
            'hosts = ["https://a.b"]',
            'hosts: expected host names without scheme or port, found "https://a.b"',
        ),
        ('load = ["module"]', 'load: expected MODULE:FUNCTION, found "module"'),
        ('load = ["a-b:c"]', 'load: expected MODULE:FUNCTION, found "a-b:c"'),
        ('load = ["a:b.c"]', 'load: expected MODULE:FUNCTION, found "a:b.c"'),
        # paths
        ("bayeux.paths = []", "bayeux.paths: expected at least one path"),
        ('bayeux.paths = ["x"]', 'bayeux.paths: expected paths like "/bayeux" (no slash at the end), found "x"'),
        ('bayeux.paths = ["/x/"]', 'bayeux.paths: expected paths like "/bayeux" (no slash at the end), found "/x/"'),
        ('bayeux.paths = ["/"]', 'bayeux.paths: expected paths like "/bayeux" (no slash at the end), found "/"'),
        (
            'bayeux.paths = ["/nt"]\nnt4.enabled = true',
            """bayeux.paths: expected other paths than NetworkTables' /nt, found "/nt\"""",
        ),
        (
            'wamp.paths = ["/nt/wamp"]\nnt4.enabled = true',
            """wamp.paths: expected other paths than NetworkTables' /nt, found "/nt/wamp\"""",
        ),
        # NetworkTables
        ("nt4.pong_s = 0.2", "nt4.pong_s: expected more than nt4.ping_s (0.2)"),
        (
            'nt4.origins = ["*"]',
            'nt4.origins: "*" cannot be allowed, since requests carry credentials: list each origin',
        ),
        ('nt4.origins = ["file:///a"]', f'nt4.origins: {ORIGIN_NEED}, found "file:///a"'),
        (
            'nt4.bridge_out = ["SmartDashboard"]',
            'nt4.bridge_out: expected names that begin with "/", as those of all shared topics, found "SmartDashboard"',
        ),
        (
            'nt4.bridge_in = [""]',
            'nt4.bridge_in: expected names that begin with "/", as those of all shared topics, found ""',
        ),
        ("bayeux.superseded_status = 301", "bayeux.superseded_status: expected 200, or 400 to 599, found 301"),
        (
            'bayeux.forwarded_ext = ["replay_gap"]',
            "bayeux.forwarded_ext: replay_gap is between a client and the server; subscribers cannot get it",
        ),
        (
            'bayeux.forwarded_ext = ["authentication"]',
            "bayeux.forwarded_ext: authentication is between a client and the server; subscribers cannot get it",
        ),
        ('bayeux.forwarded_ext = ["a", "a"]', "bayeux.forwarded_ext: a is named twice"),
        (
            'bayeux.forwarded_ext = ["a b"]',
            'bayeux.forwarded_ext: expected up to 64 letters, digits and _.-, found "a b"',
        ),
        (
            f"bayeux.forwarded_ext = {[f'n{number}' for number in range(17)]}",
            "bayeux.forwarded_ext: expected at most 16 fields",
        ),
        # cookies that browsers would throw away
        (
            'cookie = {secure = "off", same_site = "None"}',
            'cookie.secure: expected "auto" or "on", which cookie.same_site "None" needs, found "off"',
        ),
        (
            'cookie = {secure = "off", partitioned = true}',
            'cookie.secure: expected "auto" or "on", which cookie.partitioned needs, found "off"',
        ),
        (
            'cookie = {secure = "off", name = "__Secure-X"}',
            'cookie.secure: expected "auto" or "on", which the name __Secure-X needs, found "off"',
        ),
        (
            'cookie = {path = "/x", name = "__Host-X"}',
            'cookie.name: a name with __Host- needs cookie.path "/" and no cookie.domain',
        ),
        (
            'cookie.name = "a b"',
            'cookie.name: expected letters, digits and marks as in BAYEUX_BROWSER, found "a b"',
        ),
        (
            'cookie.path = "/x; Domain=evil"',
            'cookie.path: expected a path that begins with / and has no semicolon, found "/x; Domain=evil"',
        ),
        (
            'cookie.domain = "a;b"',
            'cookie.domain: expected a domain, or "" for only the host itself, found "a;b"',
        ),
        ("limits.queue_bytes = 2048", "limits.queue_bytes: expected at least limits.data_bytes (65536)"),
        (
            'limits.exempt = ["10.0.0.1/8"]',
            'limits.exempt: expected addresses or networks like 10.0.0.0/8, found "10.0.0.1/8"',
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(write, text, problem):
    """Names that browsers or sockets would refuse, and settings that contradict others, are mistakes too."""
    assert problems(write(text)) == [f"halley.toml:1: {problem}"]


def test_a_node_proves_in_one_way_who_it_is(write):
    """A user, an nkey, a credentials file or a token; each may come with a certificate."""
    ways = [("user", "password_file"), ("nkey_file",), ("creds_file",), ("token_file",)]
    for (first, *more), (second, *_) in combinations(ways, 2):
        names = (first, *more, second, "tls_cert")
        text = '[cluster]\nurls = ["nats://a"]\nnode = "a"\n' + "".join(f'{name} = "a"\n' for name in names)
        line = 4 + names.index(second)
        expected = f"halley.toml:{line}: cluster.{second}: expected either this or cluster.{first}"
        assert problems(write(text)) == [expected]


@pytest.mark.parametrize(
    "text",
    [
        'cors.origins = ["https://a.b", "http://localhost:3000", "http://[::1]:80443"]'.replace("80443", "8443"),
        'cors.origins = ["capacitor://localhost", "HTTPS://A.B"]',
        'host = "::1"',
        'host = "localhost"',
        'host = "0.0.0.0"\nopen = true',
        'hosts = ["a.b", "::1"]',
        "operations.port = 8080\noperations.enabled = false",
        'operations.port = 8080\noperations.host = "127.0.0.2"',
        "port = 0\noperations.port = 0",
        "nt4.port = 8080",
        'nt4.host = "0.0.0.0"',
        'open = true\nnt4 = {enabled = true, host = "0.0.0.0"}',
        'nt4 = {enabled = true, port = 8080, host = "127.0.0.2"}',
        'nt4.origins = ["file://", "app://elastic", "https://a.b"]',
        "nt4.bridge_out = []",
        'wamp.paths = ["/nt"]',
        'load = ["package.module:setup", "module:setup_2"]',
        "bayeux.superseded_status = 408",
        'cookie = {same_site = "None", partitioned = true, name = "__Host-X"}',
    ],
)
def test_settings_that_work_are_taken(write, text):
    """The rules accept all values that an operator can need."""
    assert load(write(text), {}, {}).settings != Settings()


def test_a_broken_rule_is_blamed_on_the_source_that_broke_it():
    """The place of the mistake is the environment variable or the flag."""
    assert problems(None, {"HALLEY_CORS_ORIGINS": "https://a.b,*"})[0].startswith("HALLEY_CORS_ORIGINS: cors.origins: ")
    assert problems(None, {}, {"host": "192.0.2.1"})[0].startswith("--host: host: ")


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a = 1\n\n# b = 2\nb = 3", {"a": 1, "b": 4}),
        ('a = """\nb = 1\n[c]\n"""\nb = 2', {"a": 1, "b": 5}),
        ("a = [\n  # [t]\n  1,\n]\nb = 2", {"a": 1, "b": 5}),
        ("a.b = 1\na.c = 2", {"a": 1, "a.b": 1, "a.c": 2}),
        ("[a]\nb = {c = 1,\td = 2}\n[a.e]\nf = 1", {"a": 1, "a.b": 2, "a.b.c": 2, "a.b.d": 2, "a.e": 3, "a.e.f": 4}),
        ('[ "a" . b ]\n"c d" = 1', {"a": 1, "a.b": 1, 'a.b."c d"': 2}),
        (
            "[[a]]\nb = 1\n[[a]]\nb = 2\n[a.e]\nf = 1\n[c]\nd = 1",
            {"a": 1, "a[0]": 1, "a[0].b": 2, "a[1]": 3, "a[1].b": 4, "a[1].e": 5, "a[1].e.f": 6, "c": 7, "c.d": 8},
        ),
        ("a = [\n{b = 1},\n{b = 2}]\nc = [1, 2]", {"a": 1, "a[0]": 1, "a[0].b": 1, "a[1]": 1, "a[1].b": 1, "c": 4}),
    ],
)
def test_lines_are_found_whatever_toml_looks_like(text, lines):
    """Lines are right for tables, dotted and quoted keys, and values over several lines that look like tables."""
    assert key_lines(text) == lines


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "# port = 1\n", "\n"]),
            st.sampled_from(['"""\nx = 1\n[x]\n"""', "[\n1, # ]\n2]", "'[x]'", "{ y = [\n1] }", "1"]),
        ),
        max_size=8,
    )
)
def test_lines_are_found_in_any_mixture(entries):
    """Property: the line of each key is the one where its text was written."""
    text, expected = "", {}
    for number, (before, value) in enumerate(entries):
        text += before
        expected[f"k{number}"] = text.count("\n") + 1
        text += f"k{number} = {value}\n"
    assert {key: line for key, line in key_lines(text).items() if "." not in key} == expected


def test_every_setting_is_declared_with_its_reason():
    """check-config prints the declarations: each has a reason, and numbers have limits and units."""
    assert len(KNOBS) > 50
    for key, knob in KNOBS.items():
        assert knob.why, key
        if knob.kind in (int, float):
            assert knob.low is not None, key
            assert knob.low <= knob.default, key
            assert knob.unit or key.endswith("port"), key
            assert knob.zero or knob.low > 0, key
        assert not isinstance(knob.default, float) or math.isfinite(knob.default), key


def test_every_setting_has_a_variable_of_its_own():
    """Variables join keys with _, so two could be the same; and none is a variable of the command line itself."""
    variables = [knob.variable for knob in KNOBS.values()]
    assert len(set(variables)) == len(variables)
    assert not NOT_SETTINGS & set(variables)
    assert KNOBS["bayeux.hold_s"].variable == "HALLEY_BAYEUX_HOLD_S"
    assert KNOBS["operations.port"].variable == "HALLEY_OPERATIONS_PORT"


def test_settings_have_types_that_can_be_checked():
    """Files, variables and check-config can read and show every type."""
    tables = [kind for kind in vars(declarations).values() if isinstance(kind, type) and is_dataclass(kind)]
    annotations = {str(field.type) for table in tables for field in fields(table) if not is_dataclass(field.type)}
    entries = {"access": ("Access", "Token"), "history": ("Record", "Lift"), "protocols": ("Lazy", "Realm", "User")}
    lists = {f"tuple[halley.settings.{file}.{name}, ...]" for file, names in entries.items() for name in names}
    plain = {annotation for annotation in annotations if not annotation.startswith("typing.Literal[")}
    scalars = {"<class 'bool'>", "<class 'int'>", "<class 'float'>", "<class 'str'>", "datetime.datetime | None"}
    assert plain <= scalars | lists | {"tuple[str, ...]"}
