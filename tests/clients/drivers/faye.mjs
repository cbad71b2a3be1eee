// A program that uses Faye's client as its documentation says; the same in Node.js and in a page.
// It reports what it sees by `observe` and decides nothing. Faye renews subscriptions by itself.

export function drive({Client, Replay}, {url, without, replay}, observe) {
    const client = new Client(url, {retry: 0.2});
    const subscriptions = new Map();
    const unsubscribed = [];
    let spoiled = {};

    without.forEach((type) => client.disable(type));
    if (replay) {
        client.addExtension(new Replay(...replay));
    }
    client.addExtension({
        incoming(message, pass) {
            observe({in: message});
            if (message.channel === "/meta/unsubscribe") {
                unsubscribed.shift()?.({successful: message.successful, error: message.error});
            }
            pass(message);
        },
        outgoing(message, pass) {
            if (message.channel === "/meta/connect") {
                Object.assign(message, spoiled);
            }
            observe({out: message});
            pass(message);
        },
    });

    return {
        open: () => new Promise((resolve) => client.connect(() => resolve({successful: true}))),
        subscribe: (pattern) => {
            const subscription = client.subscribe(pattern).withChannel(
                (channel, data) => observe({event: {pattern, channel, data}}),
            );
            subscriptions.set(pattern, subscription);
            return outcome(subscription);
        },
        unsubscribe: (pattern) => new Promise((resolve) => {
            unsubscribed.push(resolve);
            subscriptions.get(pattern).cancel();
        }),
        publish: (channel, data) => outcome(client.publish(channel, data)),
        burst: (channel, first, count) => outcome(Promise.all( // publishes numbers, without a wait in between
            Array.from({length: count}, (_, index) => client.publish(channel, first + index)),
        )),
        spoil: async (fields) => { // from now on these fields replace those of connects
            spoiled = fields;
            return {successful: true};
        },
        disconnect: () => outcome(client.disconnect()),
    };
}

function outcome(promise) {
    return promise.then(
        () => ({successful: true}),
        (error) => ({successful: false, error: `${error.code}:${error.params}:${error.message}`}),
    );
}
