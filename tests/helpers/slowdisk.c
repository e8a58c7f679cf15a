/* A disk that takes its time: LD_PRELOAD this, and every call that names or reads a file below $SLOWDISK_FOLDER waits.
 *
 * slowdisk_set(ms) sets how long; 0, as at the start, is an ordinary disk. What waited on the process's first thread,
 * which in an app draws and answers clicks, is noted in a log that slowdisk_take(buffer, size) empties: one
 * "call path" a line. Only glibc's functions are caught, which is all that Python and Qt call.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LOG_BYTES 65536
static atomic_int delay_ms;
static char log_text[LOG_BYTES];
static size_t log_bytes;
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;

void slowdisk_set(int ms) { atomic_store(&delay_ms, ms); }

size_t slowdisk_take(char *buffer, size_t size) {
    pthread_mutex_lock(&log_lock);
    size_t taken = log_bytes < size - 1 ? log_bytes : size - 1;
    memcpy(buffer, log_text, taken);
    buffer[taken] = 0;
    log_bytes = 0;
    pthread_mutex_unlock(&log_lock);
    return taken;
}

static int is_below(const char *path) {
    const char *folder = getenv("SLOWDISK_FOLDER");
    if (folder == NULL || path == NULL) return 0;
    size_t length = strlen(folder);
    return strncmp(path, folder, length) == 0 && (path[length] == '/' || path[length] == 0);
}

static void wait_for_disk(const char *call, const char *path) {
    int ms = atomic_load(&delay_ms);
    if (ms == 0) return;
    if (syscall(SYS_gettid) == getpid()) {
        pthread_mutex_lock(&log_lock);
        int written = snprintf(log_text + log_bytes, LOG_BYTES - log_bytes, "%s %s\n", call, path);
        if (written > 0 && log_bytes + (size_t)written < LOG_BYTES) log_bytes += (size_t)written;
        pthread_mutex_unlock(&log_lock);
    }
    struct timespec left = {ms / 1000, (ms % 1000) * 1000000L};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {}
}

static void named(const char *call, int folder, const char *path) {
    char whole[2 * PATH_MAX];
    if (path == NULL || atomic_load(&delay_ms) == 0) return;
    int saved = errno;
    if (path[0] != '/') {
        char link[64], base[PATH_MAX];
        if (folder == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
        else snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        ssize_t length = syscall(SYS_readlink, link, base, sizeof base - 1);
        if (length < 0) { errno = saved; return; }
        base[length] = 0;
        snprintf(whole, sizeof whole, "%s/%s", base, path);
        path = whole;
    }
    if (is_below(path)) wait_for_disk(call, path);
    errno = saved;
}

static void numbered(const char *call, int file) {
    char link[64], path[PATH_MAX];
    if (file <= 2 || atomic_load(&delay_ms) == 0) return;
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = syscall(SYS_readlink, link, path, sizeof path - 1);
    if (length > 0) {
        path[length] = 0;
        if (is_below(path)) wait_for_disk(call, path);
    }
    errno = saved;
}

#define NEXT(type, name, ...) \
    static type (*next)(__VA_ARGS__); \
    if (next == NULL) next = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list rest; va_start(rest, flags); int mode = va_arg(rest, int); va_end(rest); \
        NEXT(int, name, const char *, int, ...); \
        named("open", AT_FDCWD, path); return next(path, flags, mode); }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        va_list rest; va_start(rest, flags); int mode = va_arg(rest, int); va_end(rest); \
        NEXT(int, name, int, const char *, int, ...); \
        named("open", folder, path); return next(folder, path, flags, mode); }
OPENAT(openat)
OPENAT(openat64)

#define FOPEN(name) \
    FILE *name(const char *path, const char *mode) { \
        NEXT(FILE *, name, const char *, const char *); \
        named("open", AT_FDCWD, path); return next(path, mode); }
FOPEN(fopen)
FOPEN(fopen64)

#define STAT(name, kind) \
    int name(const char *path, struct kind *told) { \
        NEXT(int, name, const char *, struct kind *); \
        named("stat", AT_FDCWD, path); return next(path, told); }
STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)

#define STATAT(name, kind) \
    int name(int folder, const char *path, struct kind *told, int flags) { \
        NEXT(int, name, int, const char *, struct kind *, int); \
        named("stat", folder, path); return next(folder, path, told, flags); }
STATAT(fstatat, stat)
STATAT(fstatat64, stat64)

int statx(int folder, const char *path, int flags, unsigned int mask, struct statx *told) {
    NEXT(int, statx, int, const char *, int, unsigned int, struct statx *);
    if (path[0] != 0) named("stat", folder, path);
    return next(folder, path, flags, mask, told);
}

#define NAMED(name, call) \
    int name(const char *path, int mode) { \
        NEXT(int, name, const char *, int); named(call, AT_FDCWD, path); return next(path, mode); }
NAMED(access, "access")
#define MAKE(name, call) \
    int name(const char *path, mode_t mode) { \
        NEXT(int, name, const char *, mode_t); named(call, AT_FDCWD, path); return next(path, mode); }
MAKE(mkdir, "mkdir")
MAKE(chmod, "chmod")
#define GONE(name, call) \
    int name(const char *path) { NEXT(int, name, const char *); named(call, AT_FDCWD, path); return next(path); }
GONE(unlink, "unlink")
GONE(rmdir, "rmdir")

DIR *opendir(const char *path) {
    NEXT(DIR *, opendir, const char *);
    named("list", AT_FDCWD, path);
    return next(path);
}

int rename(const char *from, const char *to) {
    NEXT(int, rename, const char *, const char *);
    named("rename", AT_FDCWD, to);
    return next(from, to);
}

ssize_t readlink(const char *restrict path, char *restrict buffer, size_t size) {
    NEXT(ssize_t, readlink, const char *, char *, size_t);
    named("readlink", AT_FDCWD, path);
    return next(path, buffer, size);
}

char *realpath(const char *restrict path, char *restrict resolved) {
    NEXT(char *, realpath, const char *, char *);
    named("realpath", AT_FDCWD, path);
    return next(path, resolved);
}

ssize_t read(int file, void *buffer, size_t size) {
    NEXT(ssize_t, read, int, void *, size_t);
    numbered("read", file);
    return next(file, buffer, size);
}

int fsync(int file) {
    NEXT(int, fsync, int);
    numbered("fsync", file);
    return next(file);
}
