// A program that uses ntcore-ts-client as its documentation says. It reports what it sees by `observe` and decides nothing.

const KINDS = {
    boolean: "kBoolean", double: "kDouble", int: "kInteger", string: "kString",
    "boolean[]": "kBooleanArray", "double[]": "kDoubleArray", "int[]": "kIntegerArray", "string[]": "kStringArray",
};

export function drive({NetworkTables, NetworkTablesTypeInfos}, {port}, observe) {
    const tables = NetworkTables.getInstanceByURI("127.0.0.1", port);
    const topics = new Map();
    const topic = (name, kind) => {
        if (!topics.has(name)) {
            topics.set(name, tables.createTopic(name, NetworkTablesTypeInfos[KINDS[kind]]));
        }
        return topics.get(name);
    };
    const heard = (name, value) => observe({event: {channel: name, data: value}});

    return {
        open: () => new Promise((done) => {
            tables.addRobotConnectionListener((connected) => connected && done({successful: true}), true);
        }),
        subscribe: async (name, kind, options) => {
            topic(name, kind).subscribe((value) => heard(name, value), options);
            return null;
        },
        subscribePrefix: async (prefix, options) => {
            tables.createPrefixTopic(prefix).subscribe((value, {name}) => heard(name, value), options);
            return null;
        },
        publish: async (name, kind, properties) => {
            const announce = await topic(name, kind).publish(properties ?? {});
            return announce?.params ?? null;
        },
        set: async (name, value) => topics.get(name).setValue(value) ?? null,
        unpublish: async (name) => topics.get(name).unpublish() ?? null,
        about: async (name) => {
            const {announced, id} = topics.get(name);
            return {announced, id: id ?? null};
        },
    };
}
