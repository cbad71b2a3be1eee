// cometd-nodejs-server, set up as in its README, with keep-alive for as long as the load needs it, and without a limit
// of sessions per browser. Usage: node cometd_server.js PORT
"use strict";

const http = require("node:http");
const cometd = require("cometd-nodejs-server");

const bayeux = cometd.createCometDServer({ timeout: 25_000, maxSessionsPerBrowser: -1 });
const server = http.createServer(bayeux.handle);
server.keepAliveTimeout = 120_000;
server.listen({ port: Number(process.argv[2]), host: "127.0.0.1", backlog: 4096 });
