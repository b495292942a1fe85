# Runs that fail or are asked to stop, several hosts, and batch systems. Where a machine cannot play that (not
# root, no Slurm), the test says why and is skipped.
if(TARGET train AND TARGET tokenize AND Python3_FOUND)
  foreach(library bad_disk stopped_rank)
    add_library(${library} SHARED ${CMAKE_SOURCE_DIR}/tests/support/${library}.c)
    target_link_libraries(${library} PRIVATE ${CMAKE_DL_LIBS})
  endforeach()
  set(preload_first "")
  if(CMAKE_CXX_FLAGS MATCHES "-fsanitize=[a-z,]*address")
    execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libasan.so
                    OUTPUT_VARIABLE preload_first OUTPUT_STRIP_TRAILING_WHITESPACE)
  endif()
  foreach(part failures two_hosts three_hosts local_saves slurm slurm_nodes pbs)
    add_test(NAME jobs.${part}
             COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/${part}_test.py)
    tessera_test_properties(jobs.${part} cpu 2 400 "")
    # alone, because they play against the clock
    set_tests_properties(jobs.${part} PROPERTIES RUN_SERIAL ON)
    set_property(TEST jobs.${part} APPEND PROPERTY ENVIRONMENT
                 PYTHONDONTWRITEBYTECODE=1 MPIEXEC=${MPIEXEC_EXECUTABLE} BAD_DISK=$<TARGET_FILE:bad_disk>
                 STOPPED_RANK_LIBRARY=$<TARGET_FILE:stopped_rank> PRELOAD_FIRST=${preload_first})
  endforeach()
  set_tests_properties(jobs.local_saves PROPERTIES TIMEOUT 600)  # about twenty launches over several hosts
  add_test(NAME jobs.unreadable
           COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/unreadable_test.py)
  tessera_test_properties(jobs.unreadable cpu 2 300 "")
  set_property(TEST jobs.unreadable APPEND PROPERTY ENVIRONMENT PYTHONDONTWRITEBYTECODE=1
               MPIEXEC=${MPIEXEC_EXECUTABLE} BAD_DISK=$<TARGET_FILE:bad_disk> PRELOAD_FIRST=${preload_first})
endif()
