// Sends each message twice by `ws`, in fragments and whole, and reports the extensions, what came back, and the end.
import {WebSocket} from "ws";

const [url, ...messages] = process.argv.slice(2);
const socket = new WebSocket(url, "wamp.2.json", {perMessageDeflate: {threshold: 0}});
const heard = [];

socket.on("open", () => messages.forEach((message) => {
    socket.send(message.slice(0, 10), {fin: false});
    socket.send(message.slice(10));
    socket.send(message);
}));
socket.on("message", (message) => {
    heard.push(message.toString());
    if (heard.length === 2 * messages.length) {
        socket.close(1000);
    }
});
socket.on("close", (code) => console.log(JSON.stringify({extensions: socket.extensions, heard, code})));
