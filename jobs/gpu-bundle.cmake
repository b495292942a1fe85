# Gathers what a GPU machine needs to run the CUDA tests and the programs: a machine that has CUDA with
# cuDNN and NCCL, Open MPI and a C library no older than this one's, and nothing else of ours.
#
#   cmake -DBUILD=build -DSOURCE=. -P jobs/gpu-bundle.cmake      (what the target gpu-bundle runs)
#
# Makes BUILD/gpu-bundle/{bin,lib,golden,peers,tests.txt,run-tests.sh,eight-gpus.sh,large-models.sh,qlora.sh,measuring.sh}, and the
# same as BUILD/gpu-bundle.tar.xz, which is what to send: the tests share most of their contents.
cmake_minimum_required(VERSION 3.25)

set(bundle ${BUILD}/gpu-bundle)
file(REMOVE_RECURSE ${bundle})
file(MAKE_DIRECTORY ${bundle}/bin ${bundle}/lib)

# --- tests.txt: a line `name ranks binary` for each CUDA case; 0 ranks: without MPI ------------------
execute_process(COMMAND ${CMAKE_CTEST_COMMAND} --test-dir ${BUILD} -L cuda --show-only=json-v1
                OUTPUT_VARIABLE listing COMMAND_ERROR_IS_FATAL ANY)
string(JSON count LENGTH "${listing}" tests)
set(lines "")
set(binaries "")
if(count GREATER 0)
  math(EXPR last "${count} - 1")
  foreach(i RANGE ${last})
    string(JSON name GET "${listing}" tests ${i} name)
    string(JSON words LENGTH "${listing}" tests ${i} command)
    math(EXPR last_word "${words} - 1")
    string(JSON binary GET "${listing}" tests ${i} command ${last_word})
    set(ranks 0)
    if(words EQUAL 4)  # mpiexec -n RANKS BINARY
      string(JSON ranks GET "${listing}" tests ${i} command 2)
    elseif(NOT words EQUAL 1)
      message(FATAL_ERROR "gpu-bundle: the command of ${name} is neither BINARY nor mpiexec -n RANKS BINARY")
    endif()
    if(NOT EXISTS ${binary})
      message(FATAL_ERROR "gpu-bundle: ${binary} is not built: build the target cuda_tests")
    endif()
    list(APPEND binaries ${binary})
    cmake_path(GET binary FILENAME binary)
    string(APPEND lines "${name} ${ranks} ${binary}\n")
  endforeach()
endif()
list(REMOVE_DUPLICATES binaries)
file(WRITE ${bundle}/tests.txt "${lines}")

# --- bin: those, and the programs -------------------------------------------------------------------
file(GLOB programs LIST_DIRECTORIES false ${BUILD}/bin/*)
list(FILTER programs EXCLUDE REGEX "/test_[^/]*$")
file(COPY ${binaries} ${programs} DESTINATION ${bundle}/bin)

# --- lib: what they link that such a machine may lack -----------------------------------------------
set(not_ours
  # the C library and the compiler's
  "ld-linux" "libc\\.so" "libm\\.so" "libdl\\." "librt\\." "libpthread" "libresolv" "libstdc\\+\\+" "libgcc_s"
  # CUDA, with the driver
  "libcuda" "libcublas" "libcudnn" "libnccl" "libnv" "libcupti"
  # Open MPI and what it brings
  "libmpi" "libopen-" "libhwloc" "libevent" "libpmix" "libudev" "libcap\\.")
file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${binaries} ${programs}
     RESOLVED_DEPENDENCIES_VAR libraries UNRESOLVED_DEPENDENCIES_VAR missing
     PRE_EXCLUDE_REGEXES ${not_ours})
if(missing)
  message(FATAL_ERROR "gpu-bundle: not found here: ${missing}")
endif()
foreach(library IN LISTS libraries)
  file(COPY ${library} DESTINATION ${bundle}/lib FOLLOW_SYMLINK_CHAIN)
endforeach()

# --- the rest ---------------------------------------------------------------------------------------
file(COPY ${SOURCE}/tests/golden DESTINATION ${bundle})
file(COPY ${SOURCE}/jobs/run-gpu-tests.sh ${SOURCE}/jobs/gpu-libraries.sh
          ${SOURCE}/jobs/bench/eight-gpus.sh ${SOURCE}/jobs/bench/large-models.sh
          ${SOURCE}/jobs/bench/qlora.sh ${SOURCE}/jobs/bench/measuring.sh
          ${SOURCE}/jobs/bench/local_saves.py
          ${SOURCE}/jobs/bench/peers DESTINATION ${bundle})
file(RENAME ${bundle}/run-gpu-tests.sh ${bundle}/run-tests.sh)
file(REMOVE ${BUILD}/gpu-bundle.tar.xz)
# Every test holds all kernels: a dictionary as long as one of them stores them once.
execute_process(COMMAND tar -cf - gpu-bundle
                COMMAND xz -T1 --lzma2=preset=2,dict=64MiB
                OUTPUT_FILE ${BUILD}/gpu-bundle.tar.xz
                WORKING_DIRECTORY ${BUILD} COMMAND_ERROR_IS_FATAL ANY)
file(SIZE ${BUILD}/gpu-bundle.tar.xz bytes)
list(LENGTH binaries count)
message(STATUS "gpu-bundle: ${count} test programs, ${BUILD}/gpu-bundle.tar.xz of ${bytes} bytes")
