// A page that shows what it receives: by a subscription, and by a stream of events.

import { eventStream, HalleyClient, type ReceivedEvent } from "halley-client";

const server = new URLSearchParams(location.search).get("server") ?? "/";
const token = new URLSearchParams(location.search).get("token") ?? "";

function add(id: string, { data }: ReceivedEvent): void {
  document.getElementById(id)?.append(`${String(data)} `);
}

const client = new HalleyClient(server, { token, onOpen: () => (document.title = client.transport) });
await client.subscribe("/room/*", (event) => add("subscribed", event), { after: 0 });
await client.publish("/room/page", "hello");

for await (const event of eventStream(server, { channels: ["/room/*"], after: 0, token })) add("streamed", event);
