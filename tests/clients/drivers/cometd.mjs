// A program that uses cometd.js as its documentation says; the same in Node.js and in a page.
// It reports what it sees by `observe` and decides nothing.

export function drive({CometD, AckExtension, BinaryExtension, ReloadExtension, TimeSyncExtension}, options, observe) {
    const {url, without, extensions, requestHeaders = {}, handshake = {}, subscriptions = []} = options;
    const cometd = new CometD();
    const timesync = new TimeSyncExtension();
    const patterns = new Set(subscriptions);
    const handles = new Map();
    let spoiled = {};
    let next = null;

    without.forEach((type) => cometd.unregisterTransport(type));
    cometd.configure({url, logLevel: "warn", backoffIncrement: 100, maxBackoff: 500, requestHeaders});
    // The documented place to change the transport of a session.
    const decide = cometd.onTransportFailure;
    cometd.onTransportFailure = (message, failure, handle) => decide.call(cometd, message, failure, (decided) => {
        if (next) {
            decided.transport = cometd.findTransport(next);
        }
        handle.call(cometd, decided);
    });
    if (extensions.includes("ack")) {
        cometd.registerExtension("ack", new AckExtension());
    }
    if (extensions.includes("timesync")) {
        cometd.registerExtension("timesync", timesync);
    }
    if (extensions.includes("binary")) {
        cometd.registerExtension("binary", new BinaryExtension());
    }
    if (extensions.includes("reload")) {
        cometd.registerExtension("reload", new ReloadExtension());
    }
    cometd.registerExtension("observer", {
        incoming(message) {
            observe({in: message});
            return message;
        },
        outgoing(message) {
            if (message.channel === "/meta/connect") {
                Object.assign(message, spoiled);
            }
            observe({out: message});
            return message;
        },
    });
    // Subscriptions end with their session; the documented place to renew them is a listener for handshakes.
    cometd.addListener("/meta/handshake", (handshake) => {
        if (handshake.successful) {
            cometd.batch(() => patterns.forEach((pattern) => subscribe(pattern)));
        }
    });

    function subscribe(pattern) {
        patterns.add(pattern);
        return new Promise((resolve) => {
            const hear = ({channel, data}) => {
                if (data !== undefined) { // cometd.js calls subscribers of /** for meta messages too
                    observe({event: {pattern, channel, data: readable(data)}});
                }
            };
            handles.set(pattern, cometd.subscribe(pattern, hear, (reply) => resolve(outcome(reply))));
        });
    }

    return {
        open: () => new Promise((resolve) => {
            const listener = cometd.addListener("/meta/connect", (reply) => {
                if (reply.successful) {
                    cometd.removeListener(listener);
                    resolve(outcome(reply));
                }
            });
            cometd.handshake(handshake);
        }),
        handshake: () => new Promise((resolve) => cometd.handshake(handshake, (reply) => resolve(outcome(reply)))),
        subscribe,
        unsubscribe: (pattern) => new Promise((resolve) => {
            patterns.delete(pattern);
            cometd.unsubscribe(handles.get(pattern), (reply) => resolve(outcome(reply)));
        }),
        publish: (channel, data) => new Promise((resolve) => {
            cometd.publish(channel, data, (reply) => resolve(outcome(reply)));
        }),
        burst: (channel, first, count) => new Promise((resolve) => { // publishes numbers, without a wait in between
            let replies = 0;
            const replied = ({successful}) => {
                replies += successful;
                if (replies === count) {
                    resolve({successful: true});
                }
            };
            for (let number = first; number < first + count; number++) {
                cometd.publish(channel, number, replied);
            }
        }),
        move: async (type) => { // from now on a failure changes the transport to this one; null leaves it to cometd.js
            next = type;
            return {successful: true};
        },
        publishBytes: (channel, bytes, last = true, meta = undefined) => new Promise((resolve) => {
            cometd.publishBinary(channel, new Uint8Array(bytes), last, meta, (reply) => resolve(outcome(reply)));
        }),
        reload: async () => { // as a page does before it is unloaded
            cometd.reload();
            return {successful: true};
        },
        spoil: async (fields) => { // from now on these fields replace those of connects
            spoiled = fields;
            return {successful: true};
        },
        disconnect: () => new Promise((resolve) => {
            cometd.disconnect((reply) => resolve(outcome(reply)));
        }),
        clock: async () => ({offset_ms: timesync.getTimeOffset(), lag_ms: timesync.getNetworkLag()}),
    };
}

// What the binary extension has decoded, as JSON.
function readable(data) {
    return data?.data instanceof ArrayBuffer ? {...data, data: [...new Uint8Array(data.data)]} : data;
}

function outcome({successful, error, failure}) {
    return {successful, error: error ?? (failure && `no answer: ${failure.reason ?? failure.httpCode}`)};
}
