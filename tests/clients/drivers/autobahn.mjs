// A program that uses autobahn-js as its documentation says. It reports what it sees by `observe` and decides nothing.

import {fromTest, toTest} from "./wamp_values.mjs";

const SERIALIZERS = {json: "JSONSerializer", msgpack: "MsgpackSerializer", cbor: "CBORSerializer"};

export function drive(autobahn, {url, pollUrl, serializer}, observe) {
    const subscriptions = new Map();
    let connection = null;
    let session = null;

    const secrets = {
        ticket: (secret) => secret,
        wampcra: (secret, {challenge, salt, iterations, keylen}) => autobahn.auth_cra.sign(
            salt ? autobahn.auth_cra.derive_key(secret, salt, iterations, keylen) : secret,
            challenge,
        ),
    };

    return {
        join: ({realm, authmethod, authid, secret}) => new Promise((resolve) => {
            connection = new autobahn.Connection({
                realm,
                transports: [pollUrl ? {type: "longpoll", url: pollUrl} : {type: "websocket", url}],
                // without a serializer it offers its default ones
                ...(serializer && {serializers: [new autobahn.serializer[SERIALIZERS[serializer]]()]}),
                max_retries: 0,
                ...(authmethod && {
                    authid,
                    authmethods: [authmethod],
                    onchallenge: (_, method, extra) => secrets[method](secret, extra),
                }),
            });
            connection.onopen = (opened, details) => {
                session = opened;
                const {authid, authrole, authmethod} = details;
                resolve({value: {session: session.id, authid, authrole, authmethod}});
            };
            connection.onclose = (reason, {reason: error, message}) => {
                observe({left: {reason: error || reason, message}});
                resolve({error: error || reason});
                return true; // no further attempts
            };
            connection.open();
        }),
        subscribe: async (topic, options) => {
            const heard = (args, kwargs, details) => observe({event: toTest({
                pattern: topic,
                topic: details.topic,
                args,
                kwargs,
                publication: details.publication,
                publisher: details.publisher,
                retained: details.retained,
            })});
            return outcome(session.subscribe(topic, heard, fromTest(options)), (subscription) => {
                subscriptions.set(subscription.id, subscription);
                return subscription.id;
            });
        },
        unsubscribe: (id) => outcome(session.unsubscribe(subscriptions.get(id)), () => null),
        publish: (topic, args, kwargs, options) => outcome(
            session.publish(topic, fromTest(args) ?? undefined, fromTest(kwargs) ?? undefined, {acknowledge: true, ...fromTest(options)}),
            (publication) => publication.id,
        ),
        call: (procedure, args, kwargs) => outcome(
            session.call(procedure, fromTest(args), fromTest(kwargs) ?? undefined),
            (result) => result instanceof autobahn.Result
                ? toTest({args: result.args, kwargs: result.kwargs})
                : toTest({args: result === null ? [] : [result], kwargs: {}}),
        ),
        leave: async () => {
            connection.close();
            return {value: null};
        },
    };
}

function outcome(promise, show) {
    return promise.then(
        (value) => ({value: toTest(show(value))}),
        (error) => ({error: error.error ?? String(error)}),
    );
}
