/* A disk without room: LD_PRELOAD this, and no call writes to a file below $FULLDISK_FOLDER while the file
 * $FULLDISK_SIGN is there. What lies there already may be written over. With $FULLDISK_ERROR the disk has
 * another fault, of that number (errno.h), and room enough. With $FULLDISK_PART only files with that in their
 * path take nothing. Only glibc's functions are caught.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

static int is_full(void) {
    const char *sign = getenv("FULLDISK_SIGN");
    return sign != NULL && access(sign, F_OK) == 0;
}

static int error_number(void) {
    const char *number = getenv("FULLDISK_ERROR");
    return number == NULL ? ENOSPC : atoi(number);
}

static int has_no_room(int fd) {
    int before = errno;
    if (!is_full()) {
        errno = before;
        return 0;
    }
    const char *folder = getenv("FULLDISK_FOLDER");
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = before;
    if (length <= 0 || folder == NULL) return 0;
    path[length] = 0;
    if (strncmp(path, folder, strlen(folder)) != 0) return 0;
    const char *part = getenv("FULLDISK_PART");
    if (part != NULL && strstr(path, part) == NULL) return 0;
    errno = error_number();
    return 1;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t size) {
    return has_no_room(fd) ? -1 : NEXT(write)(fd, data, size);
}

static int is_over_what_is_there(int fd, size_t size, off64_t at) {
    struct stat64 told;
    return fstat64(fd, &told) == 0 && at + (off64_t)size <= told.st_size;
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    return !is_over_what_is_there(fd, size, at) && has_no_room(fd) ? -1 : NEXT(pwrite)(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    return !is_over_what_is_there(fd, size, at) && has_no_room(fd) ? -1 : NEXT(pwrite64)(fd, data, size, at);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    return has_no_room(fd) ? -1 : NEXT(writev)(fd, parts, count);
}

static int is_below(const char *path) {
    const char *folder = getenv("FULLDISK_FOLDER");
    return error_number() == ENOSPC && getenv("FULLDISK_PART") == NULL && folder != NULL && strncmp(path, folder, strlen(folder)) == 0;
}

int statvfs(const char *path, struct statvfs *told) {
    int result = NEXT(statvfs)(path, told);
    if (result == 0 && is_below(path) && is_full()) told->f_bavail = told->f_bfree = 0;
    return result;
}

int statvfs64(const char *path, struct statvfs64 *told) {
    int result = NEXT(statvfs64)(path, told);
    if (result == 0 && is_below(path) && is_full()) told->f_bavail = told->f_bfree = 0;
    return result;
}
