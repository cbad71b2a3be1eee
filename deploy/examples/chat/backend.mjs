/**
 * The chat's backend, for Node.js: what backend.py is for Python, with the same file of users and no packages.
 *
 *     node backend.mjs add NAME      # reads a password, and adds or replaces that user
 *     node backend.mjs serve         # on 127.0.0.1, for the nginx in front of it
 *
 * `POST /login` with `{"name", "password"}` sets a cookie and returns `{"name", "token", "expires_in_s"}`; `GET /token`
 * returns a new token to a browser with the cookie; `POST /logout` forgets it.
 */

import { spawnSync } from "node:child_process";
import { createHmac, randomBytes, scrypt as scryptWithCallback, timingSafeEqual } from "node:crypto";
import { existsSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { createInterface } from "node:readline/promises";
import { promisify } from "node:util";

const SECRET = process.env.CHAT_SECRET ?? "data/secret"; // the file that Halley's `jwt.secret` names
const USERS = process.env.CHAT_USERS ?? "data/users.json";
const PORT = Number(process.env.CHAT_PORT ?? 8090);
const TOKEN_S = Number(process.env.CHAT_TOKEN_S ?? 600); // short, as a token cannot be taken back; pages renew theirs

const SESSION_S = 12 * 3600;
const SESSIONS = 10_000; // then the oldest is logged out
const BODY_BYTES = 4_096;
const COOKIE = "__Host-session";
const NOBODY = { salt: "00".repeat(16), hash: "00".repeat(32) }; // so that an unknown name takes as long as a wrong password
const NAME = /^[a-z][a-z0-9_-]{0,31}$/;
const HARD = { N: 2 ** 15, r: 8, p: 3, maxmem: 2 ** 26 }; // 32 MiB and some tenths of a second for each password

/** By cookie: the user's name, and when it ends in ms. @type {Map<string, { name: string, ends: number }>} */
const sessions = new Map();

/** The hash of a password. @returns {Promise<Buffer>} */
const scrypt = (password, salt) => promisify(scryptWithCallback)(password, Buffer.from(salt, "hex"), 32, HARD);

/** The salt and hash of each user, by name. */
const users = () => new Map(existsSync(USERS) ? Object.entries(JSON.parse(readFileSync(USERS, "utf8"))) : []);

/** End with a sentence. */
function give(sentence) {
  console.error(sentence);
  process.exit(1);
}

/** Add a user with the password that is typed, or is the first line of standard input. */
async function add(name) {
  if (!NAME.test(name)) give("backend: a name has up to 32 of a-z, 0-9, _ and -, and begins with a letter");
  const isTyped = process.stdin.isTTY;
  if (isTyped) spawnSync("stty", ["-echo"], { stdio: "inherit" });
  const lines = createInterface({ input: process.stdin, output: isTyped ? process.stderr : undefined });
  const password = isTyped ? await lines.question("Password: ") : (await lines[Symbol.asyncIterator]().next()).value;
  lines.close();
  if (isTyped) spawnSync("stty", ["echo"], { stdio: "inherit" });
  if (!password) give("backend: a password cannot be empty");
  const salt = randomBytes(16).toString("hex");
  const hash = (await scrypt(password, salt)).toString("hex");
  const whole = Object.fromEntries(users().set(name, { salt, hash }));
  writeFileSync(`${USERS}.part`, `${JSON.stringify(whole, null, 2)}\n`, { mode: 0o600 });
  renameSync(`${USERS}.part`, USERS);
  console.log(`${name} can log in`);
}

/** A new token for a user; Halley reads `sub` as the name in `{authid}`, and `role` as that of its rules. */
function token(name) {
  const now = Math.floor(Date.now() / 1000);
  const claims = { iss: "chat", aud: "halley", sub: name, role: "user", iat: now, exp: now + TOKEN_S };
  const parts = [{ alg: "HS256", typ: "JWT" }, claims].map((part) => Buffer.from(JSON.stringify(part)).toString("base64url"));
  const secret = readFileSync(SECRET, "utf8").replace(/[\r\n]+$/, "");
  const signature = createHmac("sha256", secret).update(parts.join(".")).digest("base64url");
  return { name, token: [...parts, signature].join("."), expires_in_s: TOKEN_S };
}

/** What a refused request is answered. */
class Refusal extends Error {
  constructor(status, error) {
    super(error);
    this.status = status;
  }
}

/** The name and password that a browser sends. */
async function asked(request) {
  if (request.headers["content-type"] !== "application/json") {
    throw new Refusal(415, "application/json is expected"); // which forms of other sites cannot send
  }
  const chunks = [];
  let bytes = 0;
  for await (const chunk of request) {
    if ((bytes += chunk.length) > BODY_BYTES) throw new Refusal(413, "too long");
    chunks.push(chunk);
  }
  try {
    const { name, password } = JSON.parse(Buffer.concat(chunks).toString());
    if (typeof name === "string" && typeof password === "string") return { name, password };
  } catch {
    // as what has no name and password
  }
  throw new Refusal(400, "a name and a password are expected");
}

/** Check a name and a password, and begin a session. */
async function login(request, response) {
  const { name, password } = await asked(request);
  const known = users().get(name) ?? NOBODY;
  if (!timingSafeEqual(await scrypt(password, known.salt), Buffer.from(known.hash, "hex"))) {
    throw new Refusal(401, "wrong name or password");
  }
  while (sessions.size >= SESSIONS) sessions.delete(sessions.keys().next().value);
  const cookie = randomBytes(32).toString("base64url");
  sessions.set(cookie, { name, ends: Date.now() + SESSION_S * 1000 });
  setCookie(response, cookie, SESSION_S);
  return token(name);
}

/** Return a new token to who is logged in. */
function renew(request) {
  const session = sessions.get(cookieOf(request));
  if (!session || Date.now() >= session.ends) throw new Refusal(401, "log in first");
  return token(session.name);
}

/** Forget a session; a token that it has got is valid until it expires. */
function logout(request, response) {
  sessions.delete(cookieOf(request));
  setCookie(response, "", 0);
  return null;
}

function cookieOf(request) {
  const cookies = (request.headers.cookie ?? "").split("; ").map((pair) => pair.split("="));
  return cookies.find(([name]) => name === COOKIE)?.[1] ?? "";
}

function setCookie(response, value, age) {
  response.setHeader("Set-Cookie", `${COOKIE}=${value}; Max-Age=${age}; Path=/; Secure; HttpOnly; SameSite=Strict`);
}

const ROUTES = { "POST /login": login, "GET /token": renew, "POST /logout": logout };

/** Answer a request; what is wrong with it is in the answer. */
async function answer(request, response) {
  let status = 200;
  let content;
  try {
    const route = ROUTES[`${request.method} ${request.url}`];
    if (!route) throw new Refusal(404, "not found");
    content = await route(request, response);
    if (content === null) status = 204;
  } catch (error) {
    if (!(error instanceof Refusal)) console.error(error);
    status = error instanceof Refusal ? error.status : 500;
    content = { error: error instanceof Refusal ? error.message : "an error in the backend" };
  }
  response.writeHead(status, { "Content-Type": "application/json", "Cache-Control": "no-store" });
  response.end(content === null ? "" : JSON.stringify(content));
}

/** Serve until SIGTERM or Ctrl-C. */
function serve() {
  try {
    readFileSync(SECRET);
  } catch (error) {
    give(`backend: ${error.message}: make it as step 1 of the page says`);
  }
  const server = createServer(answer);
  server.on("error", (error) => give(`backend: ${error.message}`));
  server.listen(PORT, "127.0.0.1", () => console.log(`logins on http://127.0.0.1:${PORT}`));
}

const [verb, name] = process.argv.slice(2);
if (verb === "add" && name) await add(name);
else if (verb === "serve") serve();
else give("usage: backend.mjs add NAME | serve");
