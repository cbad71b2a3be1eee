// A program that uses Wampy.js as its documentation says; the same in Node.js and in a page.
// It reports what it sees by `observe` and decides nothing.

import {fromTest, toTest} from "./wamp_values.mjs";

export function drive({Wampy, serializers, ws, signCra}, {url, serializer}, observe) {
    const subscriptions = new Map();
    let wampy = null;

    const secrets = {
        ticket: (secret) => () => secret,
        wampcra: (secret) => signCra(secret),
    };

    return {
        join: async ({realm, authmethod, authid, secret}) => {
            wampy = new Wampy(url, {
                realm,
                ...(ws && {ws}),
                serializer: new serializers[serializer](),
                uriValidation: "loose",
                autoReconnect: false,
                ...(authmethod && {
                    authid,
                    authmethods: [authmethod],
                    authMode: "manual",
                    onChallenge: secrets[authmethod](secret),
                }),
                onClose: () => observe({left: {}}),
                onError: (error) => observe({left: {reason: error.errorUri, message: error.message}}),
            });
            return outcome(wampy.connect(), ({authid, authrole, authmethod}) => ({
                session: wampy.getSessionId(), authid, authrole, authmethod,
            }));
        },
        subscribe: (topic, options) => {
            const heard = ({details, argsList, argsDict}) => observe({event: toTest({
                pattern: topic,
                topic: details.topic,
                args: argsList,
                kwargs: argsDict,
                publisher: details.publisher,
                retained: details.retained,
            })});
            const wishes = Object.keys(options).length ? options : undefined; // {} makes Wampy.js forget its own subscription
            return outcome(wampy.subscribe(topic, heard, wishes), ({subscriptionId, subscriptionKey}) => {
                subscriptions.set(subscriptionId, subscriptionKey);
                return subscriptionId;
            });
        },
        unsubscribe: (id) => outcome(wampy.unsubscribe(subscriptions.get(id)), () => null),
        publish: (topic, args, kwargs, options) => outcome(
            wampy.publish(topic, payload(args, kwargs), fromTest(options)),
            ({publicationId}) => publicationId,
        ),
        call: (procedure, args, kwargs) => outcome(
            wampy.call(procedure, payload(args, kwargs)),
            ({argsList, argsDict}) => toTest({args: argsList ?? [], kwargs: argsDict ?? {}}),
        ),
        leave: () => outcome(wampy.disconnect(), () => null),
    };
}

function payload(args, kwargs) {
    if (args === null && kwargs === null) {
        return null;
    }
    return {argsList: fromTest(args) ?? undefined, ...(kwargs && {argsDict: fromTest(kwargs)})};
}

function outcome(promise, show) {
    return promise.then(
        (value) => ({value: toTest(show(value))}),
        (error) => ({error: error.errorUri ?? String(error)}),
    );
}
