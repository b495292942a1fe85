# Ranks that fail, hang, stop and differ. rank_probe is a small program that does so on demand; the
# Python tests start it through mpirun and look at exit status, output, time and what is left.
foreach(unit agree startup_check)
  tessera_add_test(NAME runtime.${unit} SOURCES ${unit}_test.cpp USES tessera_runtime
                   RANKS 1 2 3 4 8)
endforeach()
tessera_add_test(NAME runtime.signals SOURCES signals_test.cpp USES tessera_runtime)
tessera_add_test(NAME runtime.rank_table SOURCES rank_table_test.cpp USES tessera_runtime)

add_executable(rank_probe rank_probe.cpp)
target_link_libraries(rank_probe PRIVATE tessera_options tessera_runtime)
if(Python3_FOUND)
  foreach(case run_job watchdog stop_requests)
    add_test(NAME runtime.${case}
             COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/${case}_test.py)
    tessera_test_properties(runtime.${case} cpu 2 120 "")
    # alone, because they look at the clock
    set_tests_properties(runtime.${case} PROPERTIES RUN_SERIAL ON ENVIRONMENT
      "${TESSERA_TEST_ENVIRONMENT};MPIEXEC=${MPIEXEC_EXECUTABLE};PYTHONDONTWRITEBYTECODE=1")
  endforeach()
else()
  message(STATUS "no Python 3: tests of failing ranks are left out")
endif()
