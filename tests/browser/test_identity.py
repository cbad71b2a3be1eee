"""The identity of the console's reader: a valid token, a wrong one, and a role that has no right to publish."""

from __future__ import annotations

import asyncio
import hashlib
import re
from contextlib import suppress
from itertools import count

import pytest
from browser.conftest import SPEAKING_NT4
from browser.test_console import events, expect_granted, publish, state, subscription
from support import nt4

with suppress(ImportError):  # then the fixture `chromium` skips, or fails
    from playwright.async_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

TOKEN = "the-secret-of-ada-which-is-long-enough-0123456789"
RULES = f"""
[[access]]
role = "*"
verb = "subscribe"
pattern = "/**"

[[access]]
role = "operator"
verb = "*"
pattern = "/**"

[[access]]
role = "operator"
verb = "subscribe"
pattern = "/halley/**"

[[tokens]]
id = "ada"
role = "operator"
hash = "sha256:{hashlib.sha256(TOKEN.encode()).hexdigest()}"
"""

ADMIN = RULES.partition("[[access]]")[0] + "[[access]]" + RULES.split("[[access]]", 2)[2]
"""The same without rights for everybody."""

OPEN = """
[[access]]
role = "*"
verb = "publish"
pattern = "/n"
"""
ROBOTS = """
[[access]]
role = "nt4"
verb = "*"
pattern = "/robot/**"

"""


async def use(page, token):
    await page.get_by_label("Token", exact=True).fill(token)
    await page.get_by_role("button", name="Use", exact=True).click()


@pytest.mark.parametrize("server", [RULES], indirect=True)
async def test_a_token_opens_what_nobody_may(profile, server):
    """Anonymous is read-only and sees no figures; a wrong token is refused in words; a valid one closes the dialog."""
    page = await profile.open(server.url)
    await expect(page.get_by_text("Read-only: the role anonymous has no right to publish")).to_be_visible()
    await expect(page.get_by_role("button", name="Publish", exact=True)).to_be_disabled()
    missing = "Sign in with a token that may subscribe to /halley/** to see this server's figures."
    await expect(page.locator("#rates-notice")).to_have_text(missing)
    await page.get_by_role("button", name="Token", exact=True).click()
    await use(page, "wrong")
    await expect(page.locator("#token-trouble")).to_have_text("the server does not accept this token")
    await expect(state(page)).to_have_text("Disconnected")
    await use(page, TOKEN)
    await expect(page.get_by_role("dialog")).to_be_hidden()
    await expect(page.locator("#token-trouble")).to_have_text("")
    await expect(page.locator("#role")).to_have_text("You are ada, role operator")
    await expect(page.locator("#read-only")).to_be_hidden()
    await expect(page.locator("#rates-notice")).to_be_hidden()
    await expect_granted(page, "/**")
    await expect(page.locator("#numbers dd").first).to_have_text("1")
    await publish(page, "/a", "1")
    await expect(page.get_by_text("Published to /a")).to_be_visible()
    await page.reload()
    await expect(page.locator("#role")).to_have_text("You are ada, role operator")
    await page.get_by_role("button", name="Token", exact=True).click()
    await expect(page.get_by_text("To this server you are ada, role operator.")).to_be_visible()
    await page.get_by_role("button", name="Forget", exact=True).click()
    await expect(page.locator("#role")).to_have_text("You are anonymous")
    await expect(page.get_by_role("dialog")).to_be_hidden()


@pytest.mark.parametrize("server", [OPEN], indirect=True)
async def test_a_server_that_reads_no_tokens_says_so(profile, server):
    """The dialog has a sentence about it, and does not close as if the token had been taken."""
    profile.expected = "401 (Unauthorized)"
    page = await profile.open(server.url)
    await expect(page.locator("#role")).to_have_text("You are anonymous")
    await page.get_by_role("button", name="Token", exact=True).click()
    unread = page.get_by_text("This server reads no tokens: with any token you stay anonymous.")
    await expect(unread).to_be_visible()
    await use(page, "of another server")
    await expect(state(page)).to_have_text(re.compile("Connected"))
    await expect(page.locator("#who-now")).to_have_text("To this server you are anonymous.")
    await expect(page.get_by_role("dialog")).to_be_visible()
    await page.get_by_role("button", name="Forget", exact=True).click()
    await expect(page.get_by_role("dialog")).to_be_hidden()


async def test_a_server_without_rules_asks_for_nothing(profile, server):
    """Without access rules every client is anonymous and has all rights, and the console shows no refusal."""
    page = await profile.open(server.url)
    await expect(page.locator("#role")).to_have_text("You are anonymous")
    await expect_granted(page, "/**")
    await expect(page.locator("#numbers dd").first).to_have_text("1")
    await publish(page, "/a", "1")
    await expect(page.get_by_text("Published to /a")).to_be_visible()
    await expect(page.locator("#read-only")).to_be_hidden()
    await expect(page.locator(".notice.bad:visible")).to_have_count(0)


@pytest.mark.parametrize("server", [ADMIN], indirect=True)
@pytest.mark.parametrize("reloads", [False, True])
async def test_what_was_refused_is_asked_for_again_after_signing_in(profile, server, reloads):
    """An administrator who opens the console without a token sees everything after entering one, as does a reload."""
    page = await profile.open(server.url)
    missing = "Sign in with a token that may subscribe to /** to receive its events."
    await expect(page.get_by_text(missing)).to_be_visible()
    await expect(subscription(page, "/**").get_by_text("not allowed")).to_be_visible()
    await expect(page.locator("#command")).to_contain_text('-H "Authorization: Bearer $TOKEN"')
    if reloads:
        await page.reload()
        await expect(page.get_by_text(missing)).to_be_visible()
    await page.get_by_role("button", name="Token", exact=True).click()
    await use(page, TOKEN)
    for _ in range(2):
        await expect_granted(page, "/**")
        await expect(page.get_by_text("Sign in")).to_have_count(0)
        await expect(page.get_by_text("not allowed")).to_be_hidden()
        await expect(page.locator(".notice:visible")).to_have_count(0)
        await publish(page, "/chat/lobby", '"hello"')
        await expect(events(page).first).to_contain_text('/chat/lobby"hello"')
        await expect(page.locator("#numbers dd").first).to_have_text("1")
        await page.reload()


@pytest.mark.parametrize("server", [ADMIN], indirect=True)
async def test_no_view_answers_a_refusal_with_a_code(profile, server):
    """In each view anonymous is told which right is missing; after signing in no view shows a refusal."""
    profile.expected = "status of 40"
    page = await profile.open(server.url)
    views = ("Overview", "Channels", "Sessions", "History", "NetworkTables", "Pipeline")
    for view in views:
        await page.get_by_role("link", name=view, exact=True).click()
        await expect(
            page.locator(".view:visible").get_by_text("Sign in with a token that may subscribe").first
        ).to_be_visible()
        shown = await page.locator(".view:visible").inner_text()
        assert not re.search(r"\b40\d\b|_denied", shown), shown
    await page.get_by_role("button", name="Token", exact=True).click()
    await use(page, TOKEN)
    await expect(page.locator("#role")).to_have_text("You are ada, role operator")
    for view in reversed(views):
        await page.get_by_role("link", name=view, exact=True).click()
        await expect(page.locator(".view:visible").get_by_text("Sign in")).to_have_count(0)


@pytest.mark.parametrize("server", [RULES + OPEN], indirect=True)
async def test_another_token_while_events_flow(profile, server):
    """The page begins a new session with another identity and notes that; it receives events, and shows none twice."""
    page = await profile.open(server.url)
    await expect_granted(page, "/**")
    flow = asyncio.create_task(publish_numbers(server))
    await expect(events(page)).not_to_have_count(0)
    await page.get_by_role("button", name="Token", exact=True).click()
    await use(page, TOKEN)
    await expect(page.locator("#role")).to_have_text("You are ada, role operator")
    await expect(page.get_by_text("A new session began")).to_have_count(1)
    await expect_granted(page, "/**")
    flow.cancel()
    with suppress(asyncio.CancelledError):
        await flow
    await server.post({"channel": "/n", "data": "last"})
    await expect(events(page).first).to_contain_text('"last"')
    shown = await events(page).locator("code").all_inner_texts()
    assert len(shown) == len(set(shown))


async def publish_numbers(server):
    """Publish one number after the other until it is cancelled."""
    for number in count():
        await server.post({"channel": "/n", "data": number})
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("server", [RULES + ROBOTS + SPEAKING_NT4], indirect=True)
async def test_who_may_only_read_can_change_nothing_in_any_view(profile, server):
    """All views show that the console is read-only; controls that publish are disabled, NetworkTables' fields too."""
    profile.expected = "401 (Unauthorized)"  # the history of sessions, which the role may not read
    async with await nt4.connect(server.url, "robot") as robot:
        await robot.publish("/robot/speed", 1, "double")
        await robot.put(1, 1, 2.5)
        page = await profile.open(server.url)
        await expect(page.get_by_role("button", name="Publish", exact=True)).to_be_disabled()
        for view in ("Overview", "Channels", "Sessions", "History", "NetworkTables", "Pipeline"):
            await page.get_by_role("link", name=view, exact=True).click()
            await expect(page.get_by_text("Read-only: the role anonymous has no right to publish")).to_be_visible()
        await page.get_by_role("link", name="NetworkTables", exact=True).click()
        field = page.get_by_label("Value of /robot/speed", exact=True)
        await expect(field).to_have_value("2.5")
        await expect(field).not_to_be_editable()
        await page.get_by_role("link", name="History", exact=True).click()
        await expect(page.get_by_role("list", name="Recorded").get_by_text("/robot/speed")).to_be_visible()
