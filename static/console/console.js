/**
 * The console: puts its panels together around one Bayeux client.
 *
 * Each panel is a module of its own that gets its element and the client. Nothing here is global, and data from events
 * only ever becomes text. A new panel is one more section of the page and one more line here.
 */

import { Bayeux } from "../client/bayeux.js";
import { Connection } from "./connection.js";
import { EventList } from "./event-list.js";
import { Publisher } from "./publisher.js";
import { Subscriptions } from "./subscriptions.js";

// Relative, so that it is found too where the server is mounted below a path; `?server=/rt` names another path.
const server = new URLSearchParams(location.search).get("server") ?? "bayeux";
const bayeux = new Bayeux(new URL(server, location.href).href);

new EventList(document.querySelector("#events"), bayeux);
const subscriptions = new Subscriptions(document.querySelector("#subscriptions"), bayeux);
new Publisher(document.querySelector("#publisher"), bayeux);
new Connection(document.querySelector("#connection"), bayeux);

subscriptions.restore(["/**"]);
bayeux.connect();
