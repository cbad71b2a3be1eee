/* The floor of what a WebSocket of Bayeux costs a server: one thread that reads, finds a few words and writes.
 *
 * It answers what tests/bench/socket_load.py sends: one channel for each session, events passed on as they came, the first
 * connect answered, later ones held for ever. It checks nothing, has no queue, and ends when a kernel's buffer is full
 * or a message is not what it expects. Masks are zero, and the accepted key is not computed: the load does not look.
 *
 * gcc -O2 -o floor floor.c ; ./floor PORT */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

enum { CONNECTIONS = 65536, CHANNELS = 4096, BATCH = 1024, FRAME_BYTES = 65536, HEAD_BYTES = 4 };

static const char ACCEPTED[] =
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Accept: ICX+Yqv66kxgM0FcWaLWlFLwTAI=\r\n\r\n";
static const char CHANNEL[] = "\"channel\":\"", BENCH[] = "/bench/", DATA[] = "\"data\":";

static struct { char has_connected, is_open; } connections[CONNECTIONS];
static struct { int *receivers, count, room; } channels[CHANNELS];

static void put(int fd, const void *bytes, size_t length) {
    if (write(fd, bytes, length) != (ssize_t)length)
        errx(1, "a receiver does not read");
}

/* Writes the head of a text message in front of `payload`, which has HEAD_BYTES of room there; returns its begin. */
static char *framed(char *payload, size_t length, size_t *whole) {
    size_t head = length < 126 ? 2 : 4;
    unsigned char *begin = (unsigned char *)payload - head;
    begin[0] = 0x81;
    if (head == 2)
        begin[1] = length;
    else
        begin[1] = 126, begin[2] = length >> 8, begin[3] = length & 255;
    *whole = head + length;
    return (char *)begin;
}

static void reply(int fd, const char *channel, const char *more) {
    char text[HEAD_BYTES + 512];
    int length = snprintf(text + HEAD_BYTES, 512, "[{\"channel\":\"%s\",\"successful\":true%s}]", channel, more);
    size_t whole;
    char *frame = framed(text + HEAD_BYTES, length, &whole);
    put(fd, frame, whole);
}

static int channel_in(const char *message) {
    const char *name = strstr(message, BENCH);
    int number = name ? atoi(name + sizeof BENCH - 1) : -1;
    if (number < 0 || number >= CHANNELS)
        errx(1, "no channel in %s", message);
    return number;
}

static void subscribe(int fd, int channel) {
    if (channels[channel].count == channels[channel].room) {
        channels[channel].room = channels[channel].room ? 2 * channels[channel].room : 16;
        channels[channel].receivers = realloc(channels[channel].receivers, channels[channel].room * sizeof(int));
    }
    channels[channel].receivers[channels[channel].count++] = fd;
}

static void publish(int fd, const char *message, int channel) {
    static char text[HEAD_BYTES + FRAME_BYTES];
    const char *data = strstr(message, DATA), *end = data ? strchr(data, '}') : NULL;
    if (!end)
        errx(1, "no data in %s", message);
    size_t whole;
    int length = snprintf(text + HEAD_BYTES, FRAME_BYTES, "[{\"channel\":\"/bench/%06d\",%.*s}]", channel,
                          (int)(end + 1 - data), data);
    char *frame = framed(text + HEAD_BYTES, length, &whole);
    reply(fd, "/bench", ",\"id\":\"4\"");
    for (int each = 0; each < channels[channel].count; each++)
        put(channels[channel].receivers[each], frame, whole);
}

static void obey(int fd, const char *message) {
    const char *name = strstr(message, CHANNEL);
    if (!name)
        errx(1, "no channel in %s", message);
    name += sizeof CHANNEL - 1;
    if (!strncmp(name, "/meta/handshake", 15))
        reply(fd, "/meta/handshake", ",\"clientId\":\"0123456789abcdef\",\"id\":\"1\"");
    else if (!strncmp(name, "/meta/subscribe", 15)) {
        subscribe(fd, channel_in(name));
        reply(fd, "/meta/subscribe", ",\"id\":\"2\"");
    } else if (strncmp(name, "/meta/connect", 13))
        publish(fd, message, channel_in(name));
    else if (!connections[fd].has_connected || strstr(message, "\"timeout\":0")) {
        connections[fd].has_connected = 1;
        reply(fd, "/meta/connect", ",\"id\":\"3\"");
    }
}

static void take(int fd) {
    static char bytes[FRAME_BYTES + 1];
    ssize_t count = read(fd, bytes, FRAME_BYTES);
    if (count <= 0) {
        close(fd); /* the load leaves */
        return;
    }
    if (!connections[fd].is_open) {
        connections[fd].is_open = 1;
        put(fd, ACCEPTED, sizeof ACCEPTED - 1);
        return;
    }
    for (char *at = bytes, *end = bytes + count; at < end;) {
        unsigned char *head = (unsigned char *)at;
        size_t length = head[1] & 127, before = 2 + 4;
        if (length == 126)
            length = head[2] << 8 | head[3], before += 2;
        if (head[0] != 0x81 || at + before + length > end)
            errx(1, "not whole text messages");
        char next = at[before + length];
        at[before + length] = 0;
        obey(fd, at + before);
        at += before + length;
        *at = next;
    }
}

int main(int count, char **arguments) {
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max < CONNECTIONS ? files.rlim_max : CONNECTIONS;
    setrlimit(RLIMIT_NOFILE, &files);
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(count > 1 ? atoi(arguments[1]) : 0),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(listener, (void *)&address, sizeof address) || listen(listener, 4096))
        err(1, "bind");
    int poll = epoll_create1(0);
    struct epoll_event wanted = {.events = EPOLLIN, .data.fd = listener}, events[BATCH];
    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &wanted);
    for (;;) {
        int ready = epoll_wait(poll, events, BATCH, -1);
        for (int each = 0; each < ready; each++) {
            if (events[each].data.fd != listener) {
                take(events[each].data.fd);
                continue;
            }
            int fd;
            while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                memset(&connections[fd], 0, sizeof connections[fd]);
                wanted.data.fd = fd;
                epoll_ctl(poll, EPOLL_CTL_ADD, fd, &wanted);
            }
        }
    }
}
