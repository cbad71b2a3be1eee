// Runs one client in Node.js: reads commands from standard input and prints what the client sees, one JSON per line.
//   node node.mjs cometd9|cometd8|cometd7|faye|faye-1.2 '{"url": ..., "without": [...], "extensions": [...]}'
//   node node.mjs ntcore '{"port": ...}'
//   node node.mjs autobahn|wampy '{"url": ..., "pollUrl": ..., "serializer": "json"|"msgpack"|"cbor"}'

import {createRequire} from "node:module";
import {createInterface} from "node:readline";

const require = createRequire(import.meta.url);
const [library, options] = process.argv.slice(2);

const load = {
    async cometd9() {
        return [await adapted(), await import("cometd")];
    },
    async cometd8() {
        return [await adapted(), await import("cometd-8")];
    },
    async cometd7() {
        require("cometd-nodejs-client-1").adapt();
        const {drive} = await import("./cometd.mjs");
        const {CometD} = require("cometd-7");
        const AckExtension = require("cometd-7/AckExtension");
        const BinaryExtension = require("cometd-7/BinaryExtension");
        const ReloadExtension = require("cometd-7/ReloadExtension");
        const TimeSyncExtension = require("cometd-7/TimeSyncExtension");
        window.sessionStorage = storage();
        return [drive, {CometD, AckExtension, BinaryExtension, ReloadExtension, TimeSyncExtension}];
    },
    async faye() {
        const {drive} = await import("./faye.mjs");
        return [drive, require("faye")];
    },
    async "faye-1.2"() {
        const {drive} = await import("./faye.mjs");
        return [drive, require("faye-1.2")];
    },
    async jsforce() { // Salesforce's replay extension, as jsforce publishes it, in Faye's client
        const {drive} = await import("./faye.mjs");
        return [drive, {...require("faye"), Replay: require("jsforce/lib/api/streaming-extension").Replay}];
    },
    async ntcore() {
        const {drive} = await import("./ntcore.mjs");
        return [drive, require("ntcore-ts-client")];
    },
    async autobahn() {
        const {drive} = await import("./autobahn.mjs");
        const {XMLHttpRequest} = await import("./polling.mjs");
        globalThis.XMLHttpRequest = XMLHttpRequest;
        return [drive, require("autobahn")];
    },
    async wampy() {
        const {drive} = await import("./wampy.mjs");
        const {Wampy} = await import("wampy");
        const serializers = {
            json: (await import("wampy/JsonSerializer.js")).JsonSerializer,
            msgpack: (await import("wampy/MsgpackSerializer.js")).MsgpackSerializer,
            cbor: (await import("wampy/CborSerializer.js")).CborSerializer,
        };
        const {sign: signCra} = await import("wampy/wampcra.js");
        return [drive, {Wampy, serializers, ws: require("ws"), signCra}];
    },
};

async function adapted() { // to Node.js
    const {adapt} = await import("cometd-nodejs-client");
    adapt();
    window.sessionStorage = storage();
    return (await import("./cometd.mjs")).drive;
}

function storage() {
    const items = new Map();
    return {
        getItem: (name) => items.get(name) ?? null,
        setItem: (name, value) => items.set(name, value),
        removeItem: (name) => items.delete(name),
    };
}

console.log = console.info = console.debug = console.error; // standard output is for observations
const show = (observation) => process.stdout.write(`${JSON.stringify(observation)}\n`);
const [drive, client] = await load[library]();
let commands = drive(client, JSON.parse(options), show);

for await (const line of createInterface({input: process.stdin})) {
    const {number, name, args} = JSON.parse(line);
    if (name === "restart") { // as a page that is loaded again, with its cookies
        commands = drive(client, {...JSON.parse(options), ...args[0]}, show);
        show({number, reply: {successful: true}});
        continue;
    }
    commands[name](...args).then((reply) => show({number, reply}));
}
process.exit(0);
