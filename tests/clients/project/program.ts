// A program of Node that uses all of halley-client. It writes what it sees to standard output, one JSON a line:
//   node built/program.js URL SECRET
// SECRET is that of the server's JSON Web Tokens, which the program makes for itself, each valid for LIFE_S.

import { createHmac } from "node:crypto";

import { BayeuxError, eventStream, HalleyClient, StreamError, type Gap } from "halley-client";

interface Order {
  number: number;
}

const LIFE_S = 4;
const [url = "", secret = ""] = process.argv.slice(2);
const show = (what: string, value: unknown) => process.stdout.write(`${JSON.stringify([what, value])}\n`);
const part = (value: object | Buffer) =>
  (Buffer.isBuffer(value) ? value : Buffer.from(JSON.stringify(value))).toString("base64url");

function token(purpose: string, refused: string | null): string {
  show(`${purpose} token`, refused);
  const exp = Math.floor(Date.now() / 1000) + LIFE_S;
  const claims = { iss: "https://login.example", aud: "halley", sub: "ada", role: "member", exp };
  const signed = `${part({ alg: "HS256", typ: "JWT" })}.${part(claims)}`;
  return `${signed}.${part(createHmac("sha256", secret).update(signed).digest())}`;
}

const onGap = (gap: Gap) => show("gap", gap);
const client = new HalleyClient(url, {
  token: (refused) => token("client", refused),
  onOpen: () => show("open", client.transport),
  onLost: ({ error }) => show("lost", error.message),
  onGap,
});
await client.subscribe<Order>("/orders/*", ({ data, position }) => show("subscribed", [data.number, position]), { after: 0 });

async function listen(): Promise<never> {
  const orders = eventStream<Order>(url, {
    channels: ["/orders/**"],
    after: 0,
    token: async (refused) => token("stream", refused),
    onGap,
  });
  for await (const { data, position } of orders) show("streamed", [data.number, position]);
  throw new Error("a stream does not end by itself");
}
listen().catch((error: unknown) => show("end", error instanceof StreamError ? error.reason : String(error)));

process.stdin.on("end", () => client.close().then(() => process.exit(0)));
process.stdin.resume();
for (let number = 0; ; number += 1) {
  try {
    const { position } = await client.publish("/orders/new", { number } satisfies Order, { key: `order ${number}` });
    show("published", [number, position]);
  } catch (error) {
    if (!(error instanceof BayeuxError)) throw error;
    if (client.state === "disconnected") break;
    show("rejected", error.message);
  }
  await new Promise((resolve) => setTimeout(resolve, 20));
}
