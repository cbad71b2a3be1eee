// Bytes in the JSON lines between a test and its driver: {"$bytes": "<base64>"}. WAMP's serializers do not see this form.

export function fromTest(value) {
    if (Array.isArray(value)) {
        return value.map(fromTest);
    }
    if (value && typeof value === "object") {
        return "$bytes" in value
            ? bytes(value.$bytes)
            : Object.fromEntries(Object.entries(value).map(([key, each]) => [key, fromTest(each)]));
    }
    return value;
}

function bytes(text) { // the type that programs of this runtime use for bytes
    return globalThis.Buffer?.from(text, "base64") ?? Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
}

export function toTest(value) {
    if (value instanceof Uint8Array || value instanceof ArrayBuffer) {
        return {$bytes: btoa(String.fromCharCode(...new Uint8Array(value)))};
    }
    if (Array.isArray(value)) {
        return value.map(toTest);
    }
    if (value && typeof value === "object") {
        return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, toTest(each)]));
    }
    return typeof value === "bigint" ? Number(value) : value;
}
