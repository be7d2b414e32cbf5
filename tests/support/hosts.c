/* A library to preload, by which processes of one host see each other as those of several: locks keep nobody out, the answer to
   link may be lost, and the clock may be another one. With NPYFS_LOCKS locks are as they are. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static long number(const char *name) {
    const char *text = getenv(name);
    return text ? atol(text) : 0;
}

int flock(int file, int operation) {
    return number("NPYFS_LOCKS") ? REAL(flock)(file, operation) : 0;
}

/* With NPYFS_LOST it is done, and says that it failed with this errno. */
int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags) {
    int done = REAL(linkat)(from_dir, from, to_dir, to, flags);
    if (!done && number("NPYFS_LOST")) {
        errno = (int)number("NPYFS_LOST");
        return -1;
    }
    return done;
}

/* The clock on the wall is NPYFS_CLOCK seconds ahead. */
int clock_gettime(clockid_t clock, struct timespec *time) {
    int done = REAL(clock_gettime)(clock, time);
    if (!done && clock == CLOCK_REALTIME) time->tv_sec += number("NPYFS_CLOCK");
    return done;
}
