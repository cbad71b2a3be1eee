// A Bayeux client for pages that can load nothing but scripts, without a library: every request is a <script> element,
// every reply calls a function.

export function drive(_, {url}, observe) {
    let clientId = null;
    let hasLeft = false;
    let id = 0;
    const patterns = new Set();

    function send(message) {
        message = {...message, id: String(++id), ...(clientId && {clientId})};
        observe({out: message});
        return new Promise((resolve, reject) => {
            const script = document.createElement("script");
            const callback = `answer_${id}`;
            const end = () => {
                script.remove();
                delete window[callback];
            };
            window[callback] = (messages) => {
                end();
                messages.forEach(receive);
                resolve(messages.find((reply) => reply.id === message.id && "successful" in reply));
            };
            script.onerror = () => {
                end();
                reject(new Error("script not loaded"));
            };
            script.src = `${url}?jsonp=${callback}&message=${encodeURIComponent(JSON.stringify(message))}`;
            document.head.append(script);
        });
    }

    function receive(message) {
        observe({in: message});
        if ("data" in message) {
            observe({event: {channel: message.channel, data: message.data}});
        }
    }

    async function handshake() {
        clientId = null;
        const supportedConnectionTypes = ["callback-polling"];
        const reply = await send({channel: "/meta/handshake", version: "1.0", supportedConnectionTypes});
        clientId = reply.clientId;
        await Promise.all([...patterns].map((subscription) => send({channel: "/meta/subscribe", subscription})));
    }

    async function poll() {
        while (!hasLeft) {
            try {
                const reply = await send({channel: "/meta/connect", connectionType: "callback-polling"});
                if (reply.advice?.reconnect === "handshake") {
                    await handshake();
                }
                await new Promise((resolve) => setTimeout(resolve, reply.advice?.interval ?? 0));
            } catch {
                await new Promise((resolve) => setTimeout(resolve, 200));
            }
        }
    }

    return {
        open: async () => {
            await handshake();
            poll();
            return {successful: true};
        },
        subscribe: (subscription) => {
            patterns.add(subscription);
            return send({channel: "/meta/subscribe", subscription});
        },
        unsubscribe: (subscription) => {
            patterns.delete(subscription);
            return send({channel: "/meta/unsubscribe", subscription});
        },
        publish: (channel, data) => send({channel, data}),
        disconnect: () => {
            hasLeft = true;
            return send({channel: "/meta/disconnect"});
        },
    };
}
