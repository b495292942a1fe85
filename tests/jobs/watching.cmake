# The timeline of a run, and what its model writes.
if(TARGET train AND TARGET tokenize AND TARGET generate AND TARGET convert AND Python3_FOUND)
  foreach(case Trace Samples Generate)
    add_test(NAME jobs.watching.${case}
             COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/watching_test.py ${case})
    tessera_test_properties(jobs.watching.${case} cpu 2 300 "")
    set_property(TEST jobs.watching.${case} APPEND PROPERTY ENVIRONMENT
                 PYTHONDONTWRITEBYTECODE=1 MPIEXEC=${MPIEXEC_EXECUTABLE})
  endforeach()
endif()
