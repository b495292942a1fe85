# A second MPI: where Debian's MPICH lies beside the MPI of the build, the files that see <mpi.h>
# (collectives/mpi_*.cpp) are compiled against it too and linked, with all other objects as they are, to
# second programs in mpich/ of the build folder. Their objects and MPICH stand first in the link line, so that nothing of
# the first MPI is taken. Where that is not so, train refuses a launcher that is not its own.
find_path(MPICH_INCLUDE_DIR mpi.h NO_DEFAULT_PATH
          PATHS /usr/include/${CMAKE_LIBRARY_ARCHITECTURE}/mpich /usr/include/mpich)
find_library(MPICH_LIBRARY mpich)
find_program(MPICH_EXECUTABLE mpiexec.mpich)
mark_as_advanced(MPICH_INCLUDE_DIR MPICH_LIBRARY MPICH_EXECUTABLE)

set(reason "")
if(NOT MPICH_INCLUDE_DIR OR NOT MPICH_LIBRARY OR NOT MPICH_EXECUTABLE)
  set(reason "MPICH was not found when the build was configured (Debian: mpich, libmpich-dev)")
elseif(MPICH_INCLUDE_DIR IN_LIST MPI_CXX_INCLUDE_DIRS)
  set(reason "this build uses MPICH already")
endif()
if(reason)
  add_test(NAME tree.mpich COMMAND ${CMAKE_COMMAND} -E echo "skipped: ${reason}")
  set_tests_properties(tree.mpich PROPERTIES LABELS "cpu;np1" SKIP_REGULAR_EXPRESSION "skipped: ")
  return()
endif()

file(GLOB mpi_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/collectives/mpi_*.cpp)
add_library(tessera_mpich OBJECT ${mpi_sources})
target_include_directories(tessera_mpich SYSTEM PRIVATE ${MPICH_INCLUDE_DIR})
target_link_libraries(tessera_mpich PRIVATE tessera_options tessera_kernels)

foreach(program train test_collectives_communicator_cpu test_collectives_step_exchange_cpu
        test_runtime_whole_step_cpu)
  get_target_property(uses ${program} LINK_LIBRARIES)
  set(main "")
  if(program MATCHES "^test_")
    set(main $<TARGET_OBJECTS:tessera_mpi_test_main_cpu>)
  endif()
  add_executable(${program}_mpich $<TARGET_OBJECTS:${program}> ${main}
                 $<TARGET_OBJECTS:tessera_mpich>)
  set_target_properties(${program}_mpich PROPERTIES LINKER_LANGUAGE CXX OUTPUT_NAME ${program}
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/mpich)
  target_link_options(${program}_mpich PRIVATE -Wl,--as-needed)
  target_link_libraries(${program}_mpich PRIVATE ${MPICH_LIBRARY} ${uses})
endforeach()

foreach(unit collectives.communicator collectives.step_exchange runtime.whole_step)
  string(REPLACE "." "_" program "test_${unit}_cpu_mpich")
  foreach(ranks 1 2 3)
    set(case "${unit}.cpu.mpich.np${ranks}")
    # MPICH's ranks wait in busy loops: 3 on 2 cores make all of whole_step take 10 times as long.
    set(cases "")
    if(unit STREQUAL "runtime.whole_step" AND ranks GREATER 2)
      set(cases --run_test=whole_step/any_number_of_ranks_gives_the_bits_of_one)
    endif()
    add_test(NAME ${case} COMMAND ${MPICH_EXECUTABLE} -n ${ranks} $<TARGET_FILE:${program}> ${cases})
    tessera_test_properties(${case} cpu ${ranks} 120 "")
  endforeach()
endforeach()
if(Python3_FOUND)
  add_test(NAME jobs.train.mpich
           COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/jobs/mpich_test.py)
  tessera_test_properties(jobs.train.mpich cpu 3 120 "")
  set_property(TEST jobs.train.mpich APPEND PROPERTY ENVIRONMENT PYTHONDONTWRITEBYTECODE=1
               MPIEXEC=${MPIEXEC_EXECUTABLE} MPICH_EXECUTABLE=${MPICH_EXECUTABLE})
endif()
