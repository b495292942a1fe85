/* For LD_PRELOAD: a file system that is slow, full, or unreadable, for the processes of one test.
 *
 *   BAD_DISK_SYNC_SECONDS=N       every fsync of a file takes so much longer
 *   BAD_DISK_FULL_RANK=R          files that rank R of mpirun makes room for find no space
 *   BAD_DISK_FULL_PART=PART       with it, writes find none either, and only those of files whose path contains PART
 *   BAD_DISK_READ=PART            pread of files whose path contains PART fails with
 *   BAD_DISK_READ_ERRNO=E         this errno (EIO without it),
 *   BAD_DISK_READ_TIMES=N         N times, and then no more (for ever without it),
 *   BAD_DISK_READ_RANK=R          for rank R of mpirun alone
 *   BAD_DISK_HASTY=1              sleeps of 50 ms and more return at once
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static const char* own_rank(void) {
  const char* rank = getenv("OMPI_COMM_WORLD_RANK");
  return rank != NULL ? rank : getenv("PMI_RANK");
}

static int real_nanosleep(const struct timespec* time, struct timespec* rest) {
  int (*next)(const struct timespec*, struct timespec*) =
      (int (*)(const struct timespec*, struct timespec*))dlsym(RTLD_NEXT, "nanosleep");
  return next(time, rest);
}

int nanosleep(const struct timespec* time, struct timespec* rest) {
  if (getenv("BAD_DISK_HASTY") != NULL && (time->tv_sec > 0 || time->tv_nsec >= 50000000)) {
    return 0;
  }
  return real_nanosleep(time, rest);
}

/* Whether the path of this open file contains `part`. */
static int is_part_of_path(int file, const char* part) {
  char link[64];
  char path[4096];
  (void)snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) {
    return 0;
  }
  path[length] = '\0';
  return strstr(path, part) != NULL;
}

/* Whether this read is one of those that fail; errno is then set. */
static int fails(int file) {
  static atomic_int failures;
  const char* part = getenv("BAD_DISK_READ");
  const char* only = getenv("BAD_DISK_READ_RANK");
  if (part == NULL || (only != NULL && (own_rank() == NULL || strcmp(only, own_rank()) != 0))) {
    return 0;
  }
  const char* times = getenv("BAD_DISK_READ_TIMES");
  if (!is_part_of_path(file, part) ||
      (times != NULL && atomic_fetch_add(&failures, 1) >= atoi(times))) {
    return 0;
  }
  const char* code = getenv("BAD_DISK_READ_ERRNO");
  errno = code == NULL ? EIO : atoi(code);
  return 1;
}

ssize_t pread(int file, void* target, size_t bytes, off_t offset) {
  if (fails(file)) {
    return -1;
  }
  ssize_t (*next)(int, void*, size_t, off_t) =
      (ssize_t(*)(int, void*, size_t, off_t))dlsym(RTLD_NEXT, "pread");
  return next(file, target, bytes, offset);
}

ssize_t pread64(int file, void* target, size_t bytes, off64_t offset) {
  if (fails(file)) {
    return -1;
  }
  ssize_t (*next)(int, void*, size_t, off64_t) =
      (ssize_t(*)(int, void*, size_t, off64_t))dlsym(RTLD_NEXT, "pread64");
  return next(file, target, bytes, offset);
}

int fsync(int file) {
  const char* seconds = getenv("BAD_DISK_SYNC_SECONDS");
  if (seconds != NULL) {
    struct timespec pause = {.tv_sec = atoi(seconds), .tv_nsec = 0};
    while (real_nanosleep(&pause, &pause) != 0 && errno == EINTR) {
    }
  }
  int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
  return next(file);
}

/* Whether there is no room for this file; errno is then set. */
static int is_full(int file, int is_write) {
  const char* full = getenv("BAD_DISK_FULL_RANK");
  const char* part = getenv("BAD_DISK_FULL_PART");
  const char* rank = own_rank();
  if (full == NULL || rank == NULL || strcmp(full, rank) != 0 ||
      (part == NULL ? is_write : !is_part_of_path(file, part))) {
    return 0;
  }
  errno = ENOSPC;
  return 1;
}

ssize_t pwrite(int file, const void* source, size_t bytes, off_t offset) {
  if (is_full(file, 1)) {
    return -1;
  }
  ssize_t (*next)(int, const void*, size_t, off_t) =
      (ssize_t(*)(int, const void*, size_t, off_t))dlsym(RTLD_NEXT, "pwrite");
  return next(file, source, bytes, offset);
}

int fallocate(int file, int mode, off_t offset, off_t length) {
  if (is_full(file, 0)) {
    return -1;
  }
  int (*next)(int, int, off_t, off_t) = (int (*)(int, int, off_t, off_t))dlsym(RTLD_NEXT, "fallocate");
  return next(file, mode, offset, length);
}
