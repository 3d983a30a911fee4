/* The floor: what streaming costs when nothing is checked, retried, journalled or interpreted.
 *
 * usage: floor PORT CONNECTIONS PART_BYTES truncate|allocate DIRECTORY [PATH SIZE]...
 *
 * Each connection is a thread with one socket to 127.0.0.1: it takes the next part of the next object, asks for it by
 * HTTP/1.1 range request, receives into a buffer of 1 MiB and writes that with pwrite. Files get their size first, as
 * ours do: by ftruncate or by fallocate. Prints one JSON line: seconds, CPU seconds, requests.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER_BYTES = 1 << 20, HEAD_BYTES = 16 << 10, MOST_OBJECTS = 256 };

static struct object {
    const char *path;
    long size;
    int descriptor;
    long first_part;
} objects[MOST_OBJECTS];
static int object_count;
static int port;
static long part_bytes;
static long part_count;
static atomic_long next_part;

static void fail(const char *what) {
    fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int connect_to_store(void) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address)) fail("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void put(int fd, const char *data, long count, long at) {
    while (count > 0) {
        long written = pwrite(fd, data, count, at);
        if (written <= 0) fail("pwrite");
        data += written, count -= written, at += written;
    }
}

static void fetch(int fd, char *buffer, const struct object *object, long start, long length) {
    char head[HEAD_BYTES + 1];
    int asked = snprintf(head, sizeof head, "GET %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nRange: bytes=%ld-%ld\r\n\r\n",
                         object->path, port, start, start + length - 1);
    if (send(fd, head, asked, MSG_NOSIGNAL) != asked) fail("send");
    int have = 0;
    char *body = NULL;
    while (!body) {
        ssize_t count = recv(fd, head + have, HEAD_BYTES - have, 0);
        if (count <= 0) fail("recv of a header");
        have += count;
        head[have] = 0;
        body = strstr(head, "\r\n\r\n");
    }
    if (strncmp(head, "HTTP/1.1 206", 12)) fail("no partial content");
    body += 4;
    long filled = head + have - body, done = 0;
    memcpy(buffer, body, filled);
    while (done < length) {
        long wanted = length - done < BUFFER_BYTES ? length - done : BUFFER_BYTES;
        while (filled < wanted) {
            ssize_t count = recv(fd, buffer + filled, wanted - filled, 0);
            if (count <= 0) fail("recv of a body");
            filled += count;
        }
        put(object->descriptor, buffer, wanted, start + done);
        done += wanted, filled = 0;
    }
}

static void *run(void *unused) {
    (void)unused;
    char *buffer = malloc(BUFFER_BYTES);
    int fd = connect_to_store();
    long part;
    while ((part = atomic_fetch_add(&next_part, 1)) < part_count) {
        int i = object_count - 1;
        while (objects[i].first_part > part) i--;
        long start = (part - objects[i].first_part) * part_bytes, left = objects[i].size - start;
        fetch(fd, buffer, &objects[i], start, left < part_bytes ? left : part_bytes);
    }
    close(fd);
    free(buffer);
    return NULL;
}

static double seconds(const struct timeval *value) { return value->tv_sec + value->tv_usec / 1e6; }

int main(int count, char **words) {
    if (count < 8 || count % 2) return fprintf(stderr, "usage: see floor.c\n"), 2;
    port = atoi(words[1]);
    int connections = atoi(words[2]), allocated = !strcmp(words[4], "allocate");
    part_bytes = atol(words[3]);
    pthread_t threads[connections];
    struct timespec begun, ended;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    for (int word = 6; word < count && object_count < MOST_OBJECTS; word += 2, object_count++) {
        struct object *object = &objects[object_count];
        char name[4096];
        *object = (struct object){words[word], atol(words[word + 1]), -1, part_count};
        snprintf(name, sizeof name, "%s/%s", words[5], strrchr(object->path, '/') + 1);
        object->descriptor = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (object->descriptor < 0) fail(name);
        if (allocated ? fallocate(object->descriptor, 0, 0, object->size)
                      : ftruncate(object->descriptor, object->size)) fail("allocation");
        part_count += (object->size + part_bytes - 1) / part_bytes;
    }
    for (int i = 0; i < connections; i++)
        if (pthread_create(&threads[i], NULL, run, NULL)) fail("pthread_create");
    for (int i = 0; i < connections; i++) pthread_join(threads[i], NULL);
    clock_gettime(CLOCK_MONOTONIC, &ended);
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    printf("{\"seconds\": %.6f, \"cpu_s\": %.6f, \"requests\": %ld}\n",
           ended.tv_sec - begun.tv_sec + (ended.tv_nsec - begun.tv_nsec) / 1e9,
           seconds(&used.ru_utime) + seconds(&used.ru_stime), part_count);
    return 0;
}
