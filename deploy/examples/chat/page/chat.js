/**
 * The chat's page: it logs in, shows what was said before, and what is said from then on.
 *
 * Everything that others have written is set as text (`textContent`), so that none of it can be HTML.
 */

import { Bayeux } from "/client/bayeux.js";

const EARLIER = 100; // messages of each subscription, when the page is opened
const MOST = 500; // on the page; then the oldest are removed
const AGAIN_MS = 2_000;
const OTHER_SECRET = "Halley refuses the token: let it and the backend read the same secret.";

/** An element of the page, by its id. */
const of = (id) => document.getElementById(id);

/** Who is logged in, as the backend says: `{ name, token, expires_in_s }`. */
let user = null;
let renewal = 0; // the timer of the next token
const bayeux = new Bayeux("/bayeux", { token: () => user?.token ?? "" });

// Logging in

/** Send a request to the backend, and return its answer. Throws an error with the answer's `status`. */
async function ask(method, path, content) {
  const headers = content ? { "Content-Type": "application/json" } : {};
  const response = await fetch(path, { method, headers, body: content && JSON.stringify(content) });
  const answer = response.status === 204 ? null : await response.json().catch(() => null);
  if (response.ok) return answer;
  throw Object.assign(new Error(answer?.error ?? `the server answers ${response.status}`), { status: response.status });
}

/** Take a token, and get the next one when half of its time is over. */
function take(answer) {
  user = answer;
  clearTimeout(renewal);
  renewal = setTimeout(renew, (user.expires_in_s / 2) * 1_000);
}

/** Get a new token, however long the network is lost; false if nobody is logged in any more. */
async function renew() {
  for (;;) {
    try {
      take(await ask("GET", "/token"));
      return true;
    } catch (error) {
      if (error.status === 401) {
        leave("Log in, please.");
        return false;
      }
      if (bayeux.state !== "connected") say(`${error.message}. It is tried again.`, true);
      await pause();
    }
  }
}

const pause = () => new Promise((resolve) => setTimeout(resolve, AGAIN_MS));

async function enter() {
  of("login").hidden = true;
  of("chat").hidden = false;
  of("messages").replaceChildren();
  try {
    await Promise.all(["/chat/room/*", `/chat/user/${user.name}`].map(follow));
  } catch (error) {
    say(`${error.message} Reload the page to try again.`, true);
    return;
  }
  bayeux.connect();
}

function leave(text) {
  clearTimeout(renewal);
  user = null;
  for (const pattern of bayeux.subscriptions) bayeux.unsubscribe(pattern).catch(() => {});
  bayeux.disconnect();
  of("login").hidden = false;
  of("chat").hidden = true;
  of("messages").replaceChildren();
  say(text);
}

// Messages

/** Show the latest messages of a channel or pattern, and subscribe to what follows them, without a gap or a repeat. */
async function follow(pattern) {
  const headers = { Authorization: `Bearer ${user.token}` };
  const response = await fetch(`/history${pattern}?reverse=true&limit=${EARLIER}`, { headers });
  if (response.status === 401) throw new Error(OTHER_SECRET);
  if (!response.ok) throw new Error(`No history: ${await response.text()}.`);
  const { events } = await response.json();
  for (const { channel, data, position, time } of events) show(channel, data, position, time);
  bayeux.subscribe(pattern, { replay: { [pattern]: events[0]?.position ?? -2 } }); // -2: all, of which there are none yet
}

bayeux.addEventListener("message", ({ detail: { channel, data, ext } }) => {
  show(channel, data, ext.replay, data.event.createdDate);
});

bayeux.addEventListener("missed", ({ detail: { first, last } }) => {
  say(`Messages ${first} to ${last} are no longer kept.`, true);
});

bayeux.addEventListener("refused", ({ detail: { channel, error } }) => {
  if (error.message.startsWith("400::The replayId")) {
    bayeux.subscribe(channel, { replay: { [channel]: -2 } }); // this page was away for longer than messages are kept
  } else {
    say(`${channel}: ${error.message}`, true);
  }
});

/** Put a message where its position belongs, unless it is there. */
function show(channel, data, position, time) {
  const lines = [...of("messages").children];
  const before = lines.findLastIndex((line) => Number(line.dataset.position) <= position);
  if (Number(lines[before]?.dataset.position) === position) return;
  const isPrivate = channel.startsWith("/chat/user/");
  const where = isPrivate ? (data.to ? `to @${data.to}` : "to you") : `#${channel.split("/").pop()}`;
  const line = document.createElement("li");
  line.dataset.position = position;
  line.classList.toggle("private", isPrivate);
  line.append(
    part("time", "time", new Date(time).toLocaleTimeString()),
    part("span", "where", where),
    part("b", "from", data.from),
    part("span", "text", data.text),
  );
  const list = of("messages");
  const isAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
  list.insertBefore(line, lines[before + 1] ?? null);
  while (list.children.length > MOST) list.firstChild.remove();
  if (isAtEnd) list.scrollTop = list.scrollHeight;
}

function part(tag, name, text) {
  const element = document.createElement(tag);
  element.className = name;
  element.textContent = text;
  return element;
}

/** Send to a room (`#lobby`) or to a user (`@ada`); the sender of a private message gets a copy of it. */
async function send(to, text) {
  const [, kind, name] = /^([#@])([a-z0-9_-]{1,32})$/.exec(to) ?? [];
  if (!name) throw new Error("to whom? #lobby is a room, @ada a user");
  if (kind === "#") return bayeux.publish(`/chat/room/${name}`, { text });
  const channels = new Set([`/chat/user/${name}`, `/chat/user/${user.name}`]);
  return Promise.all([...channels].map((channel) => bayeux.publish(channel, { text, to: name })));
}

// The page

function say(text, isBad = false) {
  of("state").textContent = text;
  of("state").classList.toggle("bad", isBad);
}

/** Say how it is connected; where the token has expired, get another one first. */
async function report() {
  if (!user) return;
  const { state, error } = bayeux;
  const reason = error?.message ?? "";
  if (state === "connected") say(`${user.name}, connected by ${bayeux.transport}`);
  else if (state === "reconnecting") say(`The network is lost (${reason}). It is tried again.`, true);
  else if (state !== "disconnected" || !error) return;
  else if (reason.startsWith("403:token_expired")) {
    await pause(); // this page has slept for longer than its token is valid
    if (await renew()) bayeux.connect();
  } else if (reason.startsWith("403:token_invalid")) {
    say(OTHER_SECRET, true);
  } else say(`Halley refuses: ${reason}`, true);
}

bayeux.addEventListener("change", report);

addEventListener("online", () => user && bayeux.connect()); // at once, instead of after the pause

of("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    take(await ask("POST", "/login", Object.fromEntries(new FormData(of("login")))));
    of("login").reset();
    await enter();
  } catch (error) {
    say(error.message, true);
  }
});

of("say").addEventListener("submit", async (event) => {
  event.preventDefault();
  const { to, text } = of("say").elements;
  const words = text.value;
  try {
    text.value = "";
    await send(to.value.trim(), words);
    report();
  } catch (error) {
    text.value ||= words;
    say(error.isOutcomeUnknown ? `${error.message}: it may have been sent.` : `Not sent: ${error.message}`, true);
  }
});

of("logout").addEventListener("click", async () => {
  await ask("POST", "/logout").catch(() => {});
  leave("Logged out.");
});

if (await renew()) await enter();
