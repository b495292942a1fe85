/* For LD_PRELOAD: rank STOPPED_RANK stops (SIGSTOP) when it is about to start MPI. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  const char* stopped = getenv("STOPPED_RANK");
  const char* rank = getenv("OMPI_COMM_WORLD_RANK");
  if (rank == NULL) {
    rank = getenv("PMI_RANK");
  }
  if (stopped != NULL && rank != NULL && strcmp(stopped, rank) == 0) {
    raise(SIGSTOP);
  }
  int (*next)(int*, char***, int, int*) = (int (*)(int*, char***, int, int*))dlsym(RTLD_NEXT, "MPI_Init_thread");
  return next(argc, argv, required, provided);
}
