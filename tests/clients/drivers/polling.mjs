// The part of a browser's XMLHttpRequest that autobahn-js' long-poll transport uses, for Node.js.

export class XMLHttpRequest {
    readyState = 0;
    status = 0;
    statusText = "";
    responseText = "";
    timeout = 0;
    withCredentials = false;
    #headers = {};

    open(method, url) {
        this.method = method;
        this.url = url;
    }

    setRequestHeader(name, value) {
        this.#headers[name] = value;
    }

    async send(body) {
        const signal = this.timeout ? AbortSignal.timeout(this.timeout) : undefined;
        try {
            const response = await fetch(this.url, {method: this.method, headers: this.#headers, body, signal});
            this.responseText = await response.text();
            this.status = response.status;
            this.statusText = response.statusText;
        } catch (error) {
            if (error.name === "TimeoutError") {
                this.ontimeout?.();
                return;
            }
        }
        this.readyState = 4;
        this.onreadystatechange();
    }
}
