/* A library to preload: the n-th call of a process and its children that writes, syncs, cuts or renames a regular file on one
   disk fails. A write that fails has written half of its bytes. Files are told by their device, so that pipes, sockets and
   /dev/fuse are left alone. The program starts its workers with an empty environment: exec hands these variables on. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOGGED = 4096 };

/* As support/faults.py packs it: who tests writes the first five, the library the others. */
struct control {
    _Atomic int64_t at;      /* which call fails, from 0 on; -1: none */
    _Atomic int64_t error;   /* with which errno; below 0: it takes so many microseconds, and succeeds */
    _Atomic int64_t forever; /* and every later one */
    _Atomic int64_t counts;  /* calls are counted at all */
    _Atomic int64_t only;    /* those of this kind; 0: of every kind */
    _Atomic int64_t calls;
    char kinds[LOGGED]; /* w: write, s: sync, t: truncate, r: rename */
};

static struct control *control;
static dev_t disk;
static char preload[4200], faults[4200];

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("NPYFS_FAULTS"), *self = getenv("LD_PRELOAD");
    struct stat found;
    if (!path || !self) return;
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0 || fstat(file, &found)) abort();
    control = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (control == MAP_FAILED) abort();
    disk = found.st_dev;
    close(file);
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s", self);
    snprintf(faults, sizeof faults, "NPYFS_FAULTS=%s", path);
}

static int fails(char kind) {
    if (!control || !control->counts || (control->only && control->only != kind)) return 0;
    int64_t call = atomic_fetch_add(&control->calls, 1), at = control->at;
    if (call < LOGGED) control->kinds[call] = kind;
    if (at < 0 || call < at || (call > at && !control->forever)) return 0;
    if (control->error < 0) { /* a slow disk */
        usleep((useconds_t)-control->error);
        return 0;
    }
    errno = (int)control->error;
    return 1;
}

static int ours(int file) {
    struct stat found;
    int before = errno, is = control && !fstat(file, &found) && found.st_dev == disk &&
                            (S_ISREG(found.st_mode) || S_ISDIR(found.st_mode));
    errno = before;
    return is;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define WRITES(name, offset_type)                                             \
    ssize_t name(int file, const void *bytes, size_t size, offset_type at) {  \
        if (ours(file) && fails('w')) {                                       \
            int error = errno;                                                \
            if (REAL(name)(file, bytes, size / 2, at) < 0) { }                \
            errno = error;                                                    \
            return -1;                                                        \
        }                                                                     \
        return REAL(name)(file, bytes, size, at);                             \
    }
WRITES(pwrite, off_t)
WRITES(pwrite64, off64_t)

ssize_t write(int file, const void *bytes, size_t size) {
    if (ours(file) && fails('w')) return -1;
    return REAL(write)(file, bytes, size);
}

int fsync(int file) { return ours(file) && fails('s') ? -1 : REAL(fsync)(file); }
int fdatasync(int file) { return ours(file) && fails('s') ? -1 : REAL(fdatasync)(file); }
int ftruncate(int file, off_t size) { return ours(file) && fails('t') ? -1 : REAL(ftruncate)(file, size); }
int ftruncate64(int file, off64_t size) { return ours(file) && fails('t') ? -1 : REAL(ftruncate64)(file, size); }
int rename(const char *from, const char *to) { return fails('r') ? -1 : REAL(rename)(from, to); }
int renameat(int from_dir, const char *from, int to_dir, const char *to) {
    return fails('r') ? -1 : REAL(renameat)(from_dir, from, to_dir, to);
}

/* The environment of a worker, and these two. */
static char **more(char *const *given, char **list, int room) {
    int n = 0;
    for (; given && given[n] && n < room - 3; n++) list[n] = given[n];
    if (control) {
        list[n++] = preload;
        list[n++] = faults;
    }
    list[n] = NULL;
    return list;
}

int execvp(const char *program, char *const arguments[]) {
    char *list[256];
    environ = more(environ, list, 256);
    return REAL(execvp)(program, arguments);
}

int posix_spawnp(pid_t *child, const char *program, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
                 char *const arguments[], char *const environment[]) {
    char *list[256];
    return REAL(posix_spawnp)(child, program, actions, attributes, arguments, more(environment, list, 256));
}
