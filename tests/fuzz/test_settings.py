"""Spoiled settings: a mistake is named, whatever a file or a variable has in it."""

from __future__ import annotations

from contextlib import suppress
from random import Random

from fuzz import inputs
from hypothesis import given
from hypothesis import strategies as st

from halley.configuration import KNOBS, BadSettings, load
from halley.configuration.sources import PREFIX

FILE = b"""host = "127.0.0.1"
port = 0
[limits]
head_s = 2.5
[history]
enabled = true
[[record]]
pattern = "/a/**"
age = "7d"
[[access]]
role = "anonymous"
allow = ["publish", "subscribe"]
channels = ["/a/**"]
[cluster]
node = "a"
urls = ["nats://127.0.0.1:1"]
[bayeux]
paths = ["/bayeux"]
"""
VALUES = (
    b"nan", b"-inf", b"1e999", b"[]", b"{}", b"[[1]]", b'""', b"true", b"9" * 5_000, b'"\\u0000"', b"1979-05-27",
    b'["a", 1]', b"{a={}}", b'"%b"' % (b"x" * 5_000), b"0x10", b"[" * 3_000, b"12:00:00", b"'\xff'",
)  # fmt: skip
TEXTS = ("", "nan", "1e999", "9" * 5_000, "\x00", "é", "-1", "a,b,,", "true", "[", "\udcff")
VARIABLES = [PREFIX + key.upper().replace(".", "_") for key in KNOBS]


@given(seed=st.integers(0, 2**32))
def test_any_file_and_variables_are_read_or_their_mistakes_named(tmp_path_factory, seed):
    choose = Random(seed)
    file = tmp_path_factory.getbasetemp() / "halley.toml"
    for _ in range(10):
        lines = FILE.split(b"\n")
        at = choose.randrange(len(lines))
        lines[at] = lines[at].partition(b" = ")[0] + b" = " + choose.choice(VALUES)
        data = b"\n".join(lines)
        file.write_bytes(inputs.scrambled(choose, data) if choose.random() < 0.4 else data)
        environment = {choose.choice(VARIABLES): choose.choice(TEXTS) for _ in range(choose.randrange(3))}
        with suppress(BadSettings):
            load(file, environment, {})
