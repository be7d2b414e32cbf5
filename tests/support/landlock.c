#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <stddef.h>
/* Landlock as Linux 5.13 has it: who asks which version the kernel has is told 1. */
long syscall(long number, ...) {
    static long (*next)(long, ...);
    long a[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(list, long);
    va_end(list);
    if (number == SYS_landlock_create_ruleset && !a[0] && a[2] == 1) return 1;
    if (!next) next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
