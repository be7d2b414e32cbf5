// Preloaded into npyfs, this stalls its threads at random, each for itself, as a busy machine does: a thread sleeps in one
// of NPYFS_STALLS system calls, for at most 150 ms, and one of four new threads begins late. Nothing else changes. What
// fails then depends on how fast one thread is beside another: a test, or the program. Other programs are left alone.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define LONGEST 150 // ms
#define LATE 4

static unsigned long one_in; // 0: never
static __thread unsigned long state;

__attribute__((constructor)) static void begin(void) {
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    const char *name = strrchr(path, '/'), *wanted = getenv("NPYFS_STALLS");
    if (name && !strcmp(name, "/npyfs") && wanted)
        one_in = strtoul(wanted, NULL, 10);
}

static unsigned long draw(void) {
    if (!state) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        state = (unsigned long)now.tv_nsec ^ (unsigned long)&state ^ (unsigned long)getpid() << 20;
    }
    state = state * 6364136223846793005UL + 1442695040888963407UL;
    return state >> 33;
}

static void stall(unsigned long once_in) {
    if (!one_in || draw() % once_in)
        return;
    struct timespec time = {0, (long)(1 + draw() % LONGEST) * 1000000};
    nanosleep(&time, NULL);
}

#define NEXT(type, name) \
    static __typeof__(type) *next; \
    if (!next) \
        next = (__typeof__(type) *)dlsym(RTLD_NEXT, name)

ssize_t read(int file, void *buffer, size_t size) {
    NEXT(ssize_t(int, void *, size_t), "read");
    ssize_t done = next(file, buffer, size);
    stall(one_in);
    return done;
}

ssize_t pread64(int file, void *buffer, size_t size, off64_t at) {
    NEXT(ssize_t(int, void *, size_t, off64_t), "pread64");
    ssize_t done = next(file, buffer, size, at);
    stall(one_in);
    return done;
}

ssize_t write(int file, const void *buffer, size_t size) {
    NEXT(ssize_t(int, const void *, size_t), "write");
    stall(one_in);
    return next(file, buffer, size);
}

// The replies to the kernel.
ssize_t writev(int file, const struct iovec *parts, int count) {
    NEXT(ssize_t(int, const struct iovec *, int), "writev");
    stall(one_in);
    ssize_t done = next(file, parts, count);
    stall(one_in);
    return done;
}

int fdatasync(int file) {
    NEXT(int(int), "fdatasync");
    stall(one_in / 4 + 1);
    return next(file);
}

int ioctl(int file, unsigned long request, ...) {
    va_list rest;
    va_start(rest, request);
    void *about = va_arg(rest, void *);
    va_end(rest);
    NEXT(int(int, unsigned long, ...), "ioctl");
    stall(one_in / 4 + 1);
    return next(file, request, about);
}

// The locks, and system calls without a function of their own.
long syscall(long number, ...) {
    va_list rest;
    long value[6];
    va_start(rest, number);
    for (int at = 0; at < 6; at++)
        value[at] = va_arg(rest, long);
    va_end(rest);
    NEXT(long(long, ...), "syscall");
    long done = next(number, value[0], value[1], value[2], value[3], value[4], value[5]);
    stall(one_in);
    return done;
}

struct beginning {
    void *(*run)(void *);
    void *about;
};

static void *begin_late(void *argument) {
    struct beginning own = *(struct beginning *)argument;
    free(argument);
    stall(LATE);
    return own.run(own.about);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *about) {
    NEXT(int(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *), "pthread_create");
    struct beginning *own = one_in ? malloc(sizeof *own) : NULL;
    if (!own)
        return next(thread, attributes, run, about);
    *own = (struct beginning){run, about};
    int failed = next(thread, attributes, begin_late, own);
    if (failed)
        free(own);
    return failed;
}
