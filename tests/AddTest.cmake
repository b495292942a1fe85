# Under a sanitizer programs are slower: the TIMEOUT of every case is so many times longer.
set(timeout_factor 1)
if(CMAKE_CXX_FLAGS MATCHES "-fsanitize")
  set(timeout_factor 5)
endif()
set(TESSERA_TEST_TIMEOUT_FACTOR ${timeout_factor} CACHE STRING "factor of the tests' time limits")

# The object that holds `main` for the tests of a device, compiled once.
function(tessera_test_main target source device uses)
  if(NOT TARGET ${target})
    add_library(${target} OBJECT ${CMAKE_SOURCE_DIR}/tests/${source})
    target_link_libraries(${target} PRIVATE tessera_options tessera_test_support ${uses})
    target_compile_definitions(${target} PRIVATE
      TESSERA_TEST_DEVICE=::tessera::DeviceKind::${device} BOOST_TEST_DYN_LINK BOOST_TEST_NO_MAIN)
  endif()
endfunction()

# MPICH's ranks wait in busy loops: more of them than cores take many times as long.
set(TESSERA_MPI_SPINS OFF)
find_file(TESSERA_MPI_HEADER mpi.h PATHS ${MPI_CXX_INCLUDE_DIRS} NO_DEFAULT_PATH)
mark_as_advanced(TESSERA_MPI_HEADER)
if(TESSERA_MPI_HEADER)
  file(STRINGS ${TESSERA_MPI_HEADER} mpich_lines REGEX "define +MPICH_VERSION")
  if(mpich_lines)
    set(TESSERA_MPI_SPINS ON)
  endif()
endif()

# tessera_add_test(NAME folder.file SOURCES file_test.cpp [USES libraries] [RANKS 1 2 4]
#                  [CUDA_RANKS 1 2] [DEVICES cpu cuda] [LABELS slow] [TIMEOUT seconds])
#
# Makes one binary a device and one CTest case a (device, rank count):
# collectives.reduce_scatter.cpu.np4. Without RANKS the binary does not start MPI, and the case is
# NAME.cpu. CUDA_RANKS are those of the CUDA cases, where a rank needs a GPU of its own. Labels: the
# device, np1 or mpi, and those given. CUDA cases share the lock `gpu` and end with 77 (skipped) where
# a device is missing. The sources see TESSERA_TEST_DEVICE (a DeviceKind).
function(tessera_add_test)
  cmake_parse_arguments(TEST "" "NAME;TIMEOUT"
                        "SOURCES;USES;RANKS;CUDA_RANKS;DEVICES;LABELS" ${ARGN})
  if(NOT TEST_DEVICES)
    set(TEST_DEVICES cpu)
  endif()
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT 120)
  endif()
  foreach(device IN LISTS TEST_DEVICES)
    if(device STREQUAL "cuda" AND NOT TESSERA_CUDA)
      continue()
    endif()
    string(REPLACE "." "_" target "test_${TEST_NAME}_${device}")
    if(TEST_RANKS)
      tessera_test_main(tessera_mpi_test_main_${device} mpi_test_main.cpp ${device}
                        tessera_collectives)
      set(main $<TARGET_OBJECTS:tessera_mpi_test_main_${device}>)
      set(main_uses tessera_collectives)
    else()
      tessera_test_main(tessera_test_main_${device} test_main.cpp ${device} tessera_core)
      set(main $<TARGET_OBJECTS:tessera_test_main_${device}>)
      set(main_uses tessera_core)
    endif()
    add_executable(${target} ${TEST_SOURCES} ${main})
    target_link_libraries(${target} PRIVATE tessera_options tessera_test_support ${TEST_USES}
                          ${main_uses})
    target_compile_definitions(${target} PRIVATE
      TESSERA_TEST_DEVICE=::tessera::DeviceKind::${device} BOOST_TEST_DYN_LINK BOOST_TEST_NO_MAIN)
    if(device STREQUAL "cuda")
      add_dependencies(cuda_tests ${target})
    endif()
    if(TEST_RANKS)
      set(rank_counts ${TEST_RANKS})
      if(device STREQUAL "cuda" AND TEST_CUDA_RANKS)
        set(rank_counts ${TEST_CUDA_RANKS})
      endif()
      foreach(ranks IN LISTS rank_counts)
        set(case "${TEST_NAME}.${device}.np${ranks}")
        add_test(NAME ${case}
          COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} $<TARGET_FILE:${target}>)
        tessera_test_properties(${case} ${device} ${ranks} ${TEST_TIMEOUT} "${TEST_LABELS}")
      endforeach()
    else()
      set(case "${TEST_NAME}.${device}")
      add_test(NAME ${case} COMMAND ${target})
      tessera_test_properties(${case} ${device} 1 ${TEST_TIMEOUT} "${TEST_LABELS}")
    endif()
  endforeach()
endfunction()

function(tessera_test_properties case device ranks timeout labels)
  if(ranks GREATER 1)
    list(APPEND labels mpi)
  else()
    list(APPEND labels np1)
  endif()
  list(APPEND labels ${device})
  math(EXPR timeout "${timeout} * ${TESSERA_TEST_TIMEOUT_FACTOR}")
  if(TESSERA_MPI_SPINS AND ranks GREATER 2)
    math(EXPR timeout "${timeout} * 15")
  endif()
  set_tests_properties(${case} PROPERTIES
    LABELS "${labels}" TIMEOUT ${timeout} PROCESSORS ${ranks} SKIP_RETURN_CODE 77
    ENVIRONMENT "${TESSERA_TEST_ENVIRONMENT}")
  if(device STREQUAL "cuda")
    set_tests_properties(${case} PROPERTIES RESOURCE_LOCK gpu)
  endif()
endfunction()
