// Linked into every program of a build with the address sanitizer: plug-ins stay loaded until the
// process ends. Open MPI unloads its own in MPI_Finalize, and what they never freed would then be
// reported without the name that tests/sanitizer/lsan.supp goes by.
extern "C" int dlclose(void* /*handle*/) {
  return 0;
}
