// A server of MongoDB's protocol that reads in ways that real ones don't: one connection after the other, each command's way by
// its request id. 2: its body is thrown away with MSG_TRUNC and no buffer; 3: an urgent byte is read first; 4: the error queue and
// what is only looked at; 5: it isn't answered, and the connection is closed by close_range; else plainly.
//
// usage: odd PORT
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

static int all(int fd, char *to, size_t n) {
    for (size_t done = 0; done < n;) {
        ssize_t got = read(fd, to + done, n - done);
        if (got <= 0) return 0;
        done += got;
    }
    return 1;
}

// 1 if it has closed the connection.
static int serve(int fd) {
    int32_t h[4];
    char body[4096], odd[64];
    while (all(fd, (char *)h, sizeof h)) {
        size_t n = h[0] - 16;
        if (n > sizeof body) return 0;
        if (h[1] == 2) {
            while (n > 0) {
                ssize_t gone = recv(fd, NULL, n, MSG_TRUNC);
                if (gone <= 0) return 0;
                n -= gone;
            }
        } else {
            if (h[1] == 3) {
                struct pollfd p = {fd, POLLPRI, 0};
                poll(&p, 1, 20000);
                if (recv(fd, odd, 1, MSG_OOB) != 1 || odd[0] != '!') return 0;
            }
            if (h[1] == 4) {
                struct msghdr m = {0};
                struct iovec v = {odd, sizeof odd};
                recvmsg(fd, &m, MSG_ERRQUEUE | MSG_DONTWAIT);
                m.msg_iov = &v;
                m.msg_iovlen = 1;
                recvmsg(fd, &m, MSG_ERRQUEUE | MSG_DONTWAIT);
                recvmsg(fd, &m, MSG_PEEK);
                recv(fd, NULL, n, MSG_PEEK | MSG_TRUNC);
            }
            if (!all(fd, body, n)) return 0;
            if (h[1] == 5) return close_range(fd, fd, 0) == 0;
        }
        int32_t answer[] = {38, 7, h[1], 2013, 0};
        char out[38] = {0};
        memcpy(out, answer, 20);
        int32_t length = 17;
        memcpy(out + 21, &length, 4);
        memcpy(out + 25, "\x10ok\0\x01\0\0\0", 8);
        if (write(fd, out, sizeof out) != sizeof out) return 0;
    }
    return 0;
}

int main(int argc, char **argv) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[argc - 1]))};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 64)) return 1;
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0) return 1;
        if (!serve(fd)) close(fd);
    }
}
