# What a run shows of itself: its lines on a terminal and in files, and the page and event files of `report`.
if(TARGET train AND TARGET tokenize AND Python3_FOUND)
  foreach(case Start Terminal MetricsFile Ranks)
    add_test(NAME jobs.progress.${case}
             COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/progress_test.py ${case})
    tessera_test_properties(jobs.progress.${case} cpu 2 200 "")
    set_property(TEST jobs.progress.${case} APPEND PROPERTY ENVIRONMENT
                 PYTHONDONTWRITEBYTECODE=1 MPIEXEC=${MPIEXEC_EXECUTABLE})
  endforeach()
endif()
if(TARGET report AND TARGET train AND TARGET tokenize AND Python3_FOUND)
  foreach(case Numbers Drawn)
    add_test(NAME jobs.report.${case}
             COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/report_test.py ${case})
    tessera_test_properties(jobs.report.${case} cpu 2 300 "")
    set_property(TEST jobs.report.${case} APPEND PROPERTY ENVIRONMENT
                 PYTHONDONTWRITEBYTECODE=1 MPIEXEC=${MPIEXEC_EXECUTABLE})
  endforeach()
  tessera_add_test(NAME jobs.event_file SOURCES event_file_test.cpp USES tessera_report)
endif()
