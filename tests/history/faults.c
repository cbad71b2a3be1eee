/* Makes the disk fail: the n-th call on files of one folder, and a number of calls after it.
 *
 * It is preloaded into a process (ld.so(8), LD_PRELOAD) and armed through ctypes. The environment variable FAULTS_FOLDER
 * names the folder; calls on other files are not affected. A process that nobody arms, such as a server, is struck while
 * the file exists that FAULTS_WHILE names: each of its syncs fails.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum { OPEN = 1, WRITE = 2, SYNC = 4, RENAME = 8, TRUNCATE = 16, UNLINK = 32 };
enum { FAIL_EIO, FAIL_ENOSPC, FAIL_SHORT, KILL_BEFORE, KILL_AFTER, STOP_BEFORE };
enum { PASS = -1 };

static volatile int first, last, kinds, fault;
static volatile int calls;

/* Let `times` calls of those kinds fail, beginning with the n-th. Returns the number of calls since it was last armed. */
int faults_arm(int n, int times, int of_kinds, int how)
{
    int before = calls;
    first = last = 0;
    __sync_synchronize();
    calls = 0;
    kinds = of_kinds;
    fault = how;
    last = n ? n + times - 1 : 0;
    __sync_synchronize();
    first = n;
    return before;
}

static int is_ours(const char *path)
{
    const char *folder = getenv("FAULTS_FOLDER");
    return folder && path && !strncmp(path, folder, strlen(folder));
}

static int is_our_file(int file)
{
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return is_ours(path);
}

/* Counts a call; returns the fault that it must suffer, or PASS. */
static int struck(int kind, int ours)
{
    const char *flag = getenv("FAULTS_WHILE");
    if (kind == SYNC && ours && flag && !access(flag, F_OK))
        return FAIL_EIO;
    if (!(kinds & kind) || !ours)
        return PASS;
    int n = __sync_add_and_fetch(&calls, 1);
    if (!first || n < first || n > last)
        return PASS;
    if (fault == KILL_BEFORE)
        kill(getpid(), SIGKILL);
    if (fault == STOP_BEFORE) {
        kill(getpid(), SIGSTOP);
        return PASS;
    }
    return fault;
}

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define CALL(kind, ours, call)                                    \
    int how = struck(kind, ours);                                 \
    if (how == FAIL_EIO || how == FAIL_ENOSPC || how == FAIL_SHORT) { \
        errno = how == FAIL_EIO ? EIO : ENOSPC;                   \
        return -1;                                                \
    }                                                             \
    __typeof__(call) done = call;                                 \
    if (how == KILL_AFTER)                                        \
        kill(getpid(), SIGKILL);                                  \
    return done;

#define OPENER(name)                                              \
    int name(const char *path, int flags, ...)                    \
    {                                                             \
        va_list more;                                             \
        va_start(more, flags);                                    \
        int mode = va_arg(more, int);                             \
        va_end(more);                                             \
        REAL(name);                                               \
        CALL(OPEN, is_ours(path), real(path, flags, mode))        \
    }
OPENER(open)
OPENER(open64)

#define OPENER_AT(name)                                           \
    int name(int folder, const char *path, int flags, ...)        \
    {                                                             \
        va_list more;                                             \
        va_start(more, flags);                                    \
        int mode = va_arg(more, int);                             \
        va_end(more);                                             \
        REAL(name);                                               \
        CALL(OPEN, is_ours(path), real(folder, path, flags, mode)) \
    }
OPENER_AT(openat)
OPENER_AT(openat64)

/* A short write stores half of the bytes; when the caller writes the rest, the disk is full. */
#define WRITER(name, declared, half, whole)                       \
    ssize_t name declared                                         \
    {                                                             \
        REAL(name);                                               \
        int how = struck(WRITE, is_our_file(file));               \
        if (how == FAIL_SHORT && nbytes > 1 && calls == first)    \
            return half;                                          \
        if (how == FAIL_EIO || how == FAIL_ENOSPC || how == FAIL_SHORT) { \
            errno = how == FAIL_EIO ? EIO : ENOSPC;               \
            return -1;                                            \
        }                                                         \
        ssize_t done = whole;                                     \
        if (how == KILL_AFTER)                                    \
            kill(getpid(), SIGKILL);                              \
        return done;                                              \
    }
WRITER(write, (int file, const void *bytes, size_t nbytes), real(file, bytes, nbytes / 2), real(file, bytes, nbytes))
WRITER(pwrite, (int file, const void *bytes, size_t nbytes, off_t at), real(file, bytes, nbytes / 2, at),
       real(file, bytes, nbytes, at))
WRITER(pwrite64, (int file, const void *bytes, size_t nbytes, off64_t at), real(file, bytes, nbytes / 2, at),
       real(file, bytes, nbytes, at))

int fsync(int file) { REAL(fsync); CALL(SYNC, is_our_file(file), real(file)) }
int fdatasync(int file) { REAL(fdatasync); CALL(SYNC, is_our_file(file), real(file)) }
int rename(const char *from, const char *to) { REAL(rename); CALL(RENAME, is_ours(to), real(from, to)) }
int ftruncate(int file, off_t nbytes) { REAL(ftruncate); CALL(TRUNCATE, is_our_file(file), real(file, nbytes)) }
int ftruncate64(int file, off64_t nbytes) { REAL(ftruncate64); CALL(TRUNCATE, is_our_file(file), real(file, nbytes)) }
int unlink(const char *path) { REAL(unlink); CALL(UNLINK, is_ours(path), real(path)) }
