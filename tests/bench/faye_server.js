// Faye, set up as in its README, with keep-alive for as long as the load needs it. Usage: node faye_server.js PORT
"use strict";

const http = require("node:http");
const faye = require("faye");

const server = http.createServer((request, response) => response.writeHead(404).end());
server.keepAliveTimeout = 120_000;
new faye.NodeAdapter({ mount: "/bayeux", timeout: 25 }).attach(server);
server.listen({ port: Number(process.argv[2]), host: "127.0.0.1", backlog: 4096 });
