/* For LD_PRELOAD: a file system that is slow, or full, for the processes of one test.
 *
 *   BAD_DISK_SYNC_SECONDS=N       every fsync of a file takes so much longer
 *   BAD_DISK_FULL_RANK=R          files that rank R of mpirun makes room for find no space
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>

int fsync(int file) {
  const char* seconds = getenv("BAD_DISK_SYNC_SECONDS");
  if (seconds != NULL) {
    struct timespec pause = {.tv_sec = atoi(seconds), .tv_nsec = 0};
    while (nanosleep(&pause, &pause) != 0 && errno == EINTR) {
    }
  }
  int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
  return next(file);
}

int fallocate(int file, int mode, off_t offset, off_t length) {
  const char* full = getenv("BAD_DISK_FULL_RANK");
  const char* rank = getenv("OMPI_COMM_WORLD_RANK");
  if (rank == NULL) {
    rank = getenv("PMI_RANK");
  }
  if (full != NULL && rank != NULL && strcmp(full, rank) == 0) {
    errno = ENOSPC;
    return -1;
  }
  int (*next)(int, int, off_t, off_t) = (int (*)(int, int, off_t, off_t))dlsym(RTLD_NEXT, "fallocate");
  return next(file, mode, offset, length);
}
