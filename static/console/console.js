/**
 * The console: creates its views around one Bayeux client.
 *
 * Each view is a separate module that gets its element and the services that all views share. There are no globals, and
 * data of events is always shown as text. A new view needs a section in the page and a line here.
 */

import { Bayeux } from "../client/bayeux.js";
import { Channels } from "./channels.js";
import { Cluster } from "./cluster.js";
import { Connection } from "./connection.js";
import { EventList } from "./event-list.js";
import { Feed } from "./feed.js";
import { History } from "./history.js";
import { Identity } from "./identity.js";
import { NetworkTables } from "./network-tables.js";
import { Overview } from "./overview.js";
import { Pipeline } from "./pipeline.js";
import { Publisher } from "./publisher.js";
import { Sessions } from "./sessions.js";
import { Subscriptions } from "./subscriptions.js";
import { TokenDialog } from "./token-dialog.js";
import { Views } from "./views.js";

// A relative URL, for servers that are mounted below a path; `?server=/rt` names another path.
const server = new URLSearchParams(location.search).get("server") ?? "bayeux";
const identity = new Identity(new URL("rights", location.href).href);
const bayeux = new Bayeux(new URL(server, location.href).href, { token: () => identity.token });
const feed = new Feed(bayeux);

const events = new EventList(document.querySelector("#events"), bayeux, identity);
const subscriptions = new Subscriptions(document.querySelector("#subscriptions"), bayeux, feed, events);
new Publisher(document.querySelector("#publisher"), bayeux, identity);
new Connection(document.querySelector("#connection"), bayeux);
new TokenDialog(document, bayeux, identity);

subscriptions.restore(["/**"]); // before any view subscribes, since that overwrites the remembered list

/** What views are created with; each picks those that it needs. @typedef {typeof services} Services */
const services = { bayeux, feed, identity, subscriptions };
const views = new Views({
  overview: new Overview(document.querySelector("#overview"), services),
  channels: new Channels(document.querySelector("#channels"), services),
  sessions: new Sessions(document.querySelector("#sessions"), services),
  history: new History(document.querySelector("#history"), services),
  tables: new NetworkTables(document.querySelector("#tables"), services),
  pipeline: new Pipeline(document.querySelector("#pipeline"), services),
  cluster: new Cluster(document.querySelector("#cluster"), services, document.querySelector("nav a[href='#cluster']")),
});

identity.addEventListener("token", async () => {
  await bayeux.disconnect();
  bayeux.connect();
  subscriptions.renew();
  views.renew();
});
/** The session for which rights were requested. @type {string | null} */
let known = null;
bayeux.addEventListener("change", () => {
  if (bayeux.state !== "connected" || bayeux.session === known) return;
  known = bayeux.session;
  identity.ask();
});

bayeux.connect();
