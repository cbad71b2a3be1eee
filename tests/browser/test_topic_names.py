"""How the console shows topics' names: its module, run by Node.js, against the server's own reading of channels."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import pytest
from support.programs import require_program

from halley.broker.names import escaped
from halley.protocols.bayeux.names import to_channel

MODULE = Path(__file__).parents[2] / "static" / "console" / "topic-name.js"
SCRIPT = """
import { readFileSync } from "node:fs";
const { topicName } = await import(process.argv[1]);
process.stdout.write(JSON.stringify(JSON.parse(readFileSync(0, "utf8")).map(topicName)));
"""
NAMES = ["Auto Chooser", "v2!41", "x!2ey", "!212e", "!c3!a9", "é!20", "!ff", "!e2!82 ", "\0", "\U0001f916~($@)", "a%41"]


@pytest.mark.slow
def test_a_topic_has_the_name_that_its_publisher_gave_it():
    """Also where the name itself has what would be an escape in its channel."""
    node = require_program("node")
    chance = random.Random(14)
    pieces = ["!", "21", "2e", "41", "!c3", "!a9", "!e2", "!82", "!ac", "!ed", "!a0", "!80", "é", " ", ".", "x", "%"]
    names = NAMES + ["".join(chance.choices(pieces, k=chance.randrange(1, 9))) for _ in range(2_000)]
    channels = [to_channel(f"robot/{escaped(name)}") for name in names]
    command = [node, "--input-type=module", "-e", SCRIPT, MODULE.as_uri()]
    done = subprocess.run(command, input=json.dumps(channels), capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == [f"/robot/{name}" for name in names]
