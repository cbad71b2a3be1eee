// Reads a stream of server-sent events by a library, as its page shows it, and prints each call of its usual callback as
// JSON: what it was given as data. A reader that has given up prints an object.
//   node streams.mjs eventsource-4 http://127.0.0.1:8080/events/room

import {createRequire} from "node:module";

const require = createRequire(import.meta.url);
const [library, url] = process.argv.slice(2);

const heard = (data) => console.log(JSON.stringify(data));
const hasPositions = new URL(url).searchParams.has("positions");
const handed = ({event, data}) => (hasPositions && event && event !== "message") || heard(data); // each by one callback
const gone = (why) => console.log(JSON.stringify({gone: String(why)}));

function listen(EventSource) {
    const source = new EventSource(url);
    source.addEventListener("message", (message) => heard(message.data));
    source.addEventListener("error", () => {
        if (source.readyState === 2) gone("closed");
    });
}

const read = {
    "eventsource-1": () => listen(require("eventsource-1")),
    "eventsource-2": () => listen(require("eventsource-2")),
    "eventsource-4": () => listen(require("eventsource-4").EventSource),
    undici: () => listen(require("undici").EventSource),
    "event-source-polyfill": () => listen(require("event-source-polyfill").EventSourcePolyfill),
    "reconnecting-eventsource"() {
        const {default: ReconnectingEventSource} = require("reconnecting-eventsource");
        globalThis.EventSource = require("undici").EventSource;
        listen(ReconnectingEventSource);
    },
    "launchdarkly-eventsource"() {
        const {EventSource} = require("launchdarkly-eventsource");
        const source = new EventSource(url);
        source.onmessage = (message) => heard(message.data);
        source.onerror = () => {}; // else an error would end the process
        source.onclosed = () => gone("closed");
    },
    "event-source-plus"() {
        const {EventSourcePlus} = require("event-source-plus");
        new EventSourcePlus(url).listen({onMessage: handed});
    },
    "eventsource-client"() {
        const {createEventSource} = require("eventsource-client");
        createEventSource({url, onMessage: handed});
    },
    "fetch-event-source"() {
        globalThis.window = globalThis; // it is for pages
        globalThis.document = {hidden: false, addEventListener() {}, removeEventListener() {}};
        const {fetchEventSource} = require("@microsoft/fetch-event-source");
        fetchEventSource(url, {
            onmessage: handed,
            onclose() {
                throw new Error("the stream has ended"); // else a drain or a restart would be the end
            },
        }).then(() => gone("closed"), gone);
    },
};

read[library]();
setInterval(() => {}, 60_000); // undici's wait until it comes back keeps no process alive
