"""Rules beyond the type of each setting: names and addresses must be valid, and settings must fit each other.

`broken_rules` checks `Settings` from any source.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches

from halley.access.placeholders import EXPECTED as PLACEHOLDERS
from halley.access.placeholders import is_placeholder
from halley.access.tokens import RESERVED_ROLES, can_be_given, is_hash, is_role, is_user_key
from halley.broker.errors import InvalidName
from halley.broker.names import Pattern
from halley.broker.policy import ANONYMOUS_ROLE, SERVER
from halley.configuration.knobs import KNOBS, LISTS
from halley.configuration.protection import pattern_of_rule, unprotected_hosts
from halley.configuration.values import BadSettings, Problem, as_toml, entry_key, plain_key
from halley.history.rules import parse_age
from halley.history.stored import COLUMNS
from halley.protocols import names
from halley.protocols.bayeux.names import META, NameLimits, to_pattern
from halley.protocols.nt4.names import BASE as NT4_PATH
from halley.protocols.nt4.session import ROLE as NETWORK_TABLES
from halley.protocols.wamp.names import Grammar, check_uri, realms_of, spaces_of
from halley.settings import Bayeux, Cookie, Jwt, Limits, Settings, Token, User, is_loopback
from halley.settings.protocols import FORWARDED_FIELDS, KEPT_FIELDS, KEY_BYTES

Violations = Iterator[tuple[str, str]]

_PATH = re.compile(r"(/[A-Za-z0-9._~!$&'()*+,;=:@-]+)+")
_ORIGIN = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:(?P<port>[0-9]{1,5}))?", re.IGNORECASE
)
_HOST_NAME = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110, 5.6.2; also a cookie's name (RFC 6265, 4.1.1)
_COOKIE_PATH = re.compile(r"/[ -:<-~]*")  # RFC 6265, 4.1.1: no control character, no ";"
_EXT_FIELD = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_HOOK = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_POINTER = re.compile(r"(/([^~/]|~[01])*)*")  # RFC 6901, 3
_COLUMN = re.compile(r"[a-z][a-z0-9_]{0,63}")
_LAKE_COLUMNS = ("day", "time", "channel", "name", "fault", "fault_last")
NATS_URL = re.compile(r"(nats|tls)://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
_NODE = re.compile(r"[A-Za-z0-9-]{1,63}")
"""As long as the name of a pod or a host may be (RFC 1123, 2.1)."""

_SPACE = re.compile(r"[A-Za-z0-9-]{1,32}")
_SOURCE = re.compile(r"[A-Za-z0-9_-]{1,32}")  # longer texts are cut in the statistics of a lake's files
_HOST_AND_PORT = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")
_ANY_ADDRESS = ("0.0.0.0", "[::]", "[::0]")  # noqa: S104 - it is refused
_MOST_COLUMNS = 100
_DAY_S = 86_400.0
_ROLE_NEED = "expected up to 64 letters, digits and _.:-"
_SOURCE_NEED = "up to 32 letters, digits, _ and -"
_RESERVED = " and ".join(RESERVED_ROLES)
_ALGORITHMS = ("RS256", "ES256", "HS256")
_ID_CHARS = 255
_USUAL_PORTS = {"http": "80", "https": "443"}


def check(settings: Settings, places: Mapping[str, str], problems: Sequence[Problem] = ()) -> None:
    """Check the rules between settings; `places` has where each was set, by key, if that is known.

    `problems` are the mistakes found before; the settings in which they were made have their defaults or stand-ins. A
    rule that depends on one of these says nothing. Raises `BadSettings` with all mistakes.
    """
    wrong = {problem.key for problem in problems}
    unknown = {*(wrong & KNOBS.keys()), *(f"[[{key}]]" for key in wrong & LISTS.keys())}
    stand_ins = {key for each in problems for key in each.about}
    broken = [
        Problem(places[key], plain_key(key), text) if key in places else Problem("", key, text)
        for key, text in broken_rules(settings)
        if key not in stand_ins and not any(name == key or _is_named(name, text) for name in unknown)
    ]
    if problems or broken:
        raise BadSettings([*problems, *broken])


def _is_named(name: str, text: str) -> bool:
    """Whether a text is about that setting. `port` and `open` are words too, but not in "port (80)", "open = true"."""
    if name.isidentifier():
        return re.search(rf"(?<![\w.]){name} [(=]", text) is not None
    return name in text


def broken_rules(settings: Settings) -> Violations:
    """Yield the keys of the settings that cannot be used, each with what was expected."""
    yield from _listeners(settings)
    yield from _proxies(settings)
    if settings.tls.key and not settings.tls.cert:
        yield "tls.key", "expected tls.cert (--tls-cert) too"
    yield from _bayeux(settings.bayeux)
    yield from _wamp(settings)
    yield from _nt4(settings)
    yield from _realms(settings)
    yield from _users(settings.user)
    yield from _cookie(settings.cookie)
    yield from _origins("cors.origins", settings.cors.origins)
    yield from _limits(settings.limits)
    yield from _access(settings)
    yield from _lazy(settings)
    yield from _record(settings)
    yield from _lift(settings)
    yield from _pipeline(settings)
    yield from _cluster(settings)
    yield from _tokens(settings.tokens)
    yield from _jwt(settings.jwt)


def unnamed_roles(settings: Settings) -> Violations:
    """Yield the keys of the roles that clients can have and no access rule names, where there are rules at all.

    Such a role can be meant, since a rule for "*" is about it too; but it may be misspelt.
    """
    if not settings.access:
        return
    named = {rule.role for rule in settings.access}
    given = [(entry_key("tokens", number, "role"), token.role) for number, token in enumerate(settings.tokens)]
    given += [(entry_key("user", number, "role"), user.role) for number, user in enumerate(settings.user)]
    given += [("jwt.role", settings.jwt.role)] if settings.jwt.role else []
    for key, role in given:
        if role not in named:
            likely = "".join(f"; did you mean {as_toml(name)}?" for name in get_close_matches(role, named - {"*"}, n=1))
            yield key, f"no access rule names the role {as_toml(role)}{likely}"


def roles_unproved(settings: Settings) -> set[str]:
    """The roles that access rules name and that no client can have, unless a program of its own gives them.

    Any role can be that of a JSON Web Token, where these are accepted.
    """
    if settings.jwt.jwks or settings.jwt.secret:
        return set()
    given = {token.role for token in settings.tokens} | {user.role for user in settings.user}
    return {rule.role for rule in settings.access} - given - {"*", ANONYMOUS_ROLE, NETWORK_TABLES}


def _unlike(key: str, values: Iterable[str], form: re.Pattern[str], expected: str) -> Violations:
    """Yield a broken rule for each value that does not have this form."""
    for value in values:
        if not form.fullmatch(value):
            yield key, f"expected {expected}, found {as_toml(value)}"


def _name(key: str, text: str) -> Violations:
    if not (0 < len(text) <= _ID_CHARS and text.isprintable()):
        yield key, f"expected 1 to {_ID_CHARS} characters, found {as_toml(text)}"


def _given_role(key: str, role: str) -> Violations:
    if not can_be_given(role):
        yield key, f"{_ROLE_NEED} and none of {_RESERVED}, found {as_toml(role)}"


def _listeners(settings: Settings) -> Violations:
    operations, nt4 = settings.operations, settings.nt4
    unprotected = unprotected_hosts(settings)
    for key, host in (("host", settings.host), ("operations.host", operations.host), ("nt4.host", nt4.host)):
        if not _HOST_NAME.fullmatch(host):  # an empty one would listen on all addresses
            yield key, f"expected a host name or an address without a port, found {as_toml(host)}"
        elif key in unprotected and not is_loopback(host):
            need = "expected access rules ([[access]]) or open = true (--open) too"
            yield key, f"{need}, as {host} lets other machines read and publish everything"
    taken = {(settings.host, settings.port): "port"}
    for key, listener in (("operations.port", operations), ("nt4.port", nt4)):
        owner = taken.setdefault((listener.host, listener.port), key) if listener.enabled and listener.port else key
        if owner != key:
            yield key, f"expected another port than {owner} ({listener.port})"
    yield from _unlike("hosts", settings.hosts, _HOST_NAME, "host names without scheme or port")
    yield from _unlike("load", settings.load, _HOOK, "MODULE:FUNCTION")


def _proxies(settings: Settings) -> Violations:
    for proxy in settings.proxies:
        try:
            network = ipaddress.ip_network(proxy)
        except ValueError:
            yield "proxies", f"expected addresses, or networks like 10.0.0.0/8, found {as_toml(proxy)}"
        else:
            if network.prefixlen == 0:
                yield "proxies", f"{proxy} is every address: any client could claim any address"
    if settings.proxies and is_loopback(unprotected_hosts(settings).get("host", "")):
        yield "proxies", "expected open = true (--open) too, as proxies let others read and publish everything"


def _bayeux(bayeux: Bayeux) -> Violations:
    yield from _paths("bayeux", bayeux.paths)
    if 200 < bayeux.superseded_status < 400:
        yield "bayeux.superseded_status", f"expected 200, or 400 to 599, found {bayeux.superseded_status}"
    if len(bayeux.forwarded_ext) > FORWARDED_FIELDS:
        yield "bayeux.forwarded_ext", f"expected at most {FORWARDED_FIELDS} fields"
    yield from _unlike("bayeux.forwarded_ext", bayeux.forwarded_ext, _EXT_FIELD, "up to 64 letters, digits and _.-")
    for name in bayeux.forwarded_ext:
        if name in KEPT_FIELDS or name.startswith("replay"):
            yield "bayeux.forwarded_ext", f"{name} is between a client and the server; subscribers cannot get it"
    for name in {name for name in bayeux.forwarded_ext if bayeux.forwarded_ext.count(name) > 1}:
        yield "bayeux.forwarded_ext", f"{name} is named twice"


def _wamp(settings: Settings) -> Violations:
    yield from _paths("wamp", settings.wamp.paths)
    for path in settings.wamp.paths:
        if _is_below(path, settings.bayeux.paths) and _PATH.fullmatch(path):
            yield "wamp.paths", f"expected other paths than bayeux.paths and those below them, found {as_toml(path)}"
        if path.endswith("/open") and path.removesuffix("/open") in settings.wamp.paths:
            yield "wamp.paths", f"{path} is where long-polling begins at {path.removesuffix('/open')}"


def _is_below(path: str, mounts: tuple[str, ...]) -> bool:
    """Whether a path is one of `mounts`, or below one."""
    return any(f"{path}/".startswith(f"{mount}/") for mount in mounts)


def _paths(protocol: str, paths: tuple[str, ...]) -> Violations:
    if not paths:
        yield f"{protocol}.paths", "expected at least one path"
    yield from _unlike(f"{protocol}.paths", paths, _PATH, f'paths like "/{protocol}" (no slash at the end)')


def _nt4(settings: Settings) -> Violations:
    nt4 = settings.nt4
    if not nt4.ping_s < nt4.pong_s:  # else no client could reply in time
        yield "nt4.pong_s", f"expected more than nt4.ping_s ({nt4.ping_s:g})"
    yield from _origins("nt4.origins", (origin for origin in nt4.origins if origin != "file://"))
    for key, prefixes in (("nt4.bridge_out", nt4.bridge_out), ("nt4.bridge_in", nt4.bridge_in)):
        for prefix in prefixes:
            if not prefix.startswith("/"):
                yield (
                    key,
                    f'expected names that begin with "/", as those of all shared topics, found {as_toml(prefix)}',
                )
    if nt4.enabled:
        for key, paths in (("bayeux.paths", settings.bayeux.paths), ("wamp.paths", settings.wamp.paths)):
            for path in paths:
                if _is_below(path, (NT4_PATH,)):
                    yield key, f"expected other paths than NetworkTables' {NT4_PATH}, found {as_toml(path)}"


def _realms(settings: Settings) -> Violations:
    grammar = Grammar(settings.limits.topic_chars, settings.limits.topic_segments, is_strict=False)
    seen: set[str] = set()
    for number, realm in enumerate(settings.realm):
        key = entry_key("realm", number, "name")
        try:
            check_uri(realm.name, grammar)
        except InvalidName:
            yield key, f"expected a URI like com.example.realm, found {as_toml(realm.name)}"
        if realm.name in seen:
            yield key, f"duplicate realm: {as_toml(realm.name)}"
        seen.add(realm.name)


def _realm(key: str, name: str, settings: Settings) -> Violations:
    if name not in spaces_of(settings):
        known = " or ".join(as_toml(realm.name) for realm in realms_of(settings))
        yield key, f"expected the name of a realm ({known}), found {as_toml(name)}"


def _users(users: tuple[User, ...]) -> Violations:
    seen: set[str] = set()
    for number, user in enumerate(users):
        yield from _name(entry_key("user", number, "id"), user.id)
        if user.id in seen:
            yield entry_key("user", number, "id"), f"duplicate user: {as_toml(user.id)}"
        seen.add(user.id)
        yield from _given_role(entry_key("user", number, "role"), user.role)
        if not is_user_key(user.key):  # never repeated, as with tokens
            yield entry_key("user", number, "key"), f"expected base64 of {KEY_BYTES} bytes (see halley user)"
        yield from _name(entry_key("user", number, "salt"), user.salt)


def _cookie(cookie: Cookie) -> Violations:
    yield from _unlike("cookie.name", [cookie.name], _TOKEN, "letters, digits and marks as in BAYEUX_BROWSER")
    yield from _unlike("cookie.path", [cookie.path], _COOKIE_PATH, "a path that begins with / and has no semicolon")
    if cookie.domain:
        yield from _unlike("cookie.domain", [cookie.domain], _HOST_NAME, 'a domain, or "" for only the host itself')
    if cookie.secure == "off":  # browsers discard such cookies, and every request would count as a new browser
        if cookie.same_site == "None":
            yield "cookie.secure", 'expected "auto" or "on", which cookie.same_site "None" needs, found "off"'
        if cookie.partitioned:
            yield "cookie.secure", 'expected "auto" or "on", which cookie.partitioned needs, found "off"'
        if cookie.name.startswith(("__Secure-", "__Host-")):
            yield "cookie.secure", f'expected "auto" or "on", which the name {cookie.name} needs, found "off"'
    if cookie.name.startswith("__Host-") and (cookie.path != "/" or cookie.domain):
        yield "cookie.name", 'a name with __Host- needs cookie.path "/" and no cookie.domain'


def _origins(key: str, origins: Iterable[str]) -> Violations:
    for origin in origins:
        if origin in ("*", "null"):
            # Any page, even a sandboxed one of an attacker, could act with its visitors' cookies.
            yield key, f'"{origin}" cannot be allowed, since requests carry credentials: list each origin'
        elif not (parts := _ORIGIN.fullmatch(origin)) or int(parts["port"] or 0) > 65_535:
            yield key, f"expected scheme://host[:port] without a path, found {as_toml(origin)}"
        elif parts["port"] is not None and parts["port"] == _USUAL_PORTS.get(parts["scheme"].lower()):
            usual = origin.removesuffix(f":{parts['port']}")
            yield key, f'expected "{usual}", since browsers omit the default port, found {as_toml(origin)}'


def _limits(limits: Limits) -> Violations:
    if limits.queue_bytes < limits.data_bytes:  # the largest event would end every session that it is delivered to
        yield "limits.queue_bytes", f"expected at least limits.data_bytes ({limits.data_bytes})"
    for network in limits.exempt:
        try:
            ipaddress.ip_network(network)
        except ValueError:
            yield "limits.exempt", f"expected addresses or networks like 10.0.0.0/8, found {as_toml(network)}"


def _access(settings: Settings) -> Violations:
    bounds = NameLimits(settings.limits.topic_chars, settings.limits.topic_segments)
    for number, rule in enumerate(settings.access):
        if rule.role == SERVER:
            yield entry_key("access", number, "role"), f'"{SERVER}" is allowed everything; no rule can change that'
        elif rule.role != "*" and not is_role(rule.role):
            yield entry_key("access", number, "role"), f"{_ROLE_NEED}, found {as_toml(rule.role)}"
        yield from _access_pattern(entry_key("access", number, "pattern"), rule.pattern, bounds)
        yield from _realm(entry_key("access", number, "realm"), rule.realm, settings)


def _lazy(settings: Settings) -> Violations:
    bounds = NameLimits(settings.limits.topic_chars, settings.limits.topic_segments)
    for number, rule in enumerate(settings.lazy):
        yield from _pattern(entry_key("lazy", number, "pattern"), rule.pattern, bounds)


def _record(settings: Settings) -> Violations:
    bounds = NameLimits(settings.limits.topic_chars, settings.limits.topic_segments)
    for number, rule in enumerate(settings.record):
        yield from _pattern(entry_key("record", number, "pattern"), rule.pattern, bounds)
        yield from _realm(entry_key("record", number, "realm"), rule.realm, settings)
        try:
            parse_age(rule.age)
        except ValueError as error:
            yield entry_key("record", number, "age"), str(error)
    history = settings.history
    if history.max_bytes < 2 * history.segment_bytes:  # retention deletes whole segments, and never the newest
        yield "history.max_bytes", f"expected at least twice history.segment_bytes ({history.segment_bytes})"


def _lift(settings: Settings) -> Violations:
    bounds = NameLimits(settings.limits.topic_chars, settings.limits.topic_segments)
    types: dict[str, str] = {}
    for number, lift in enumerate(settings.lift):
        yield from _pattern(entry_key("lift", number, "pattern"), lift.pattern, bounds, names.to_pattern)
        yield from _unlike(entry_key("lift", number, "pointer"), [lift.pointer], _POINTER, "a JSON Pointer")
        key = entry_key("lift", number, "column")
        if not _COLUMN.fullmatch(lift.column):
            yield key, "expected up to 64 lowercase letters, digits and _, beginning with a letter"
        elif lift.column in (*COLUMNS, *_LAKE_COLUMNS):
            yield key, f"expected a name that is not a column of the lake already, found {as_toml(lift.column)}"
        elif types.setdefault(lift.column, lift.type) != lift.type:
            need = f"expected {types[lift.column]}, as in an earlier entry for this column"
            yield entry_key("lift", number, "type"), need
    if len(types) > _MOST_COLUMNS:
        yield "lift", f"expected at most {_MOST_COLUMNS} columns"


def _pipeline(settings: Settings) -> Violations:
    try:
        is_long = parse_age(settings.pipeline.vacuum_age) >= _DAY_S
    except ValueError as error:
        yield "pipeline.vacuum_age", str(error)
    else:
        if not is_long:  # the files of a running commit look like those of one that has failed
            yield "pipeline.vacuum_age", "expected at least 1d"
    yield from _unlike("pipeline.source", filter(None, [settings.pipeline.source]), _SOURCE, _SOURCE_NEED)


def _cluster(settings: Settings) -> Violations:
    cluster = settings.cluster
    if not cluster.urls:
        if cluster.front:
            yield "cluster.front", "expected cluster.urls too (--cluster): a server alone keeps its own history"
        return
    yield from _unlike("cluster.urls", cluster.urls, NATS_URL, "URLs like nats://host:4222 (no user: see cluster.user)")
    if cluster.node:
        yield from _unlike("cluster.node", [cluster.node], _NODE, "up to 63 letters, digits and - (--node)")
    else:
        yield "cluster.node", "expected a name (--node NAME), which --cluster needs"
    yield from _unlike("cluster.space", [cluster.space], _SPACE, "up to 32 letters, digits and -")
    if not settings.history.enabled:
        yield "history.enabled", "expected true: the history is what the nodes of a cluster share"
    listen = _HOST_AND_PORT.fullmatch(cluster.listen)
    if listen is None or int(listen["port"]) > 65_535:
        yield "cluster.listen", f"expected host:port, found {as_toml(cluster.listen)}"
    elif listen["host"] in _ANY_ADDRESS and not cluster.advertise:
        yield "cluster.listen", f"expected cluster.advertise too, as {cluster.listen} names no host"
    named = _HOST_AND_PORT.fullmatch(cluster.advertise.removeprefix("http://"))
    if cluster.advertise and (named is None or int(named["port"]) > 65_535):
        yield "cluster.advertise", f"expected a URL like http://10.0.0.5:8090, found {as_toml(cluster.advertise)}"
    proofs = [name for name in ("user", "nkey_file", "creds_file", "token_file") if getattr(cluster, name)]
    for name in proofs[1:]:
        yield f"cluster.{name}", f"expected either this or cluster.{proofs[0]}"
    if cluster.password_file and not cluster.user:
        yield "cluster.password_file", "expected cluster.user too"
    if cluster.tls_key and not cluster.tls_cert:
        yield "cluster.tls_key", "expected cluster.tls_cert too"


def _access_pattern(key: str, pattern: str, bounds: NameLimits) -> Violations:
    unknown = [each for each in pattern.split("/") if "{" in each and not is_placeholder(each)]
    if unknown:
        yield key, f"expected {PLACEHOLDERS}, found {as_toml(unknown[0])}"
    else:
        yield from _pattern(key, pattern, bounds, pattern_of_rule)


def _pattern(
    key: str, pattern: str, bounds: NameLimits, parse: Callable[[str, NameLimits], Pattern] = to_pattern
) -> Violations:
    try:
        parse(pattern, bounds)
    except InvalidName:
        yield key, f"expected a channel or pattern like /chat/room, /chat/* or /chat/**, found {as_toml(pattern)}"
    else:
        if pattern.startswith(META):
            yield key, "rules do not apply to meta channels"


def _tokens(tokens: tuple[Token, ...]) -> Violations:
    seen: set[str] = set()
    for number, token in enumerate(tokens):
        yield from _name(entry_key("tokens", number, "id"), token.id)
        yield from _given_role(entry_key("tokens", number, "role"), token.role)
        if not is_hash(token.hash):  # never repeated: it may be the token itself, pasted by mistake
            yield entry_key("tokens", number, "hash"), "expected sha256: and 64 hexadecimal digits (see halley token)"
        elif token.hash in seen:
            yield entry_key("tokens", number, "hash"), "duplicate token: an earlier entry has this hash"
        seen.add(token.hash)


def _jwt(jwt: Jwt) -> Violations:
    for algorithm in jwt.algorithms:
        if algorithm not in _ALGORITHMS:
            yield "jwt.algorithms", f"expected some of {', '.join(_ALGORITHMS)}, found {as_toml(algorithm)}"
    if jwt.role:
        yield from _given_role("jwt.role", jwt.role)
    for claim in jwt.claims:
        yield from _name("jwt.claims", claim)
    if jwt.jwks or jwt.secret:
        for name in ("issuer", "audience", "role_claim"):
            if not getattr(jwt, name):
                yield f"jwt.{name}", 'expected a string that is not empty, since tokens are accepted, found ""'
        for name, served in (("jwks", {"RS256", "ES256"}), ("secret", {"HS256"})):
            if getattr(jwt, name) and not served & set(jwt.algorithms):
                yield "jwt.algorithms", f"expected {' or '.join(sorted(served))} too, since jwt.{name} is set"
    elif jwt.issuer or jwt.audience:  # an incomplete configuration must not look complete
        yield "jwt.issuer" if jwt.issuer else "jwt.audience", "expected jwt.jwks or jwt.secret too"
