# What lies around train: the script that starts it again, and the modes of the files that it makes.
if(TARGET train AND TARGET tokenize AND Python3_FOUND)
  foreach(part run_forever umask)
    add_test(NAME jobs.${part}
             COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/${part}_test.py)
    tessera_test_properties(jobs.${part} cpu 2 120 "")
    set_property(TEST jobs.${part} APPEND PROPERTY ENVIRONMENT
                 PYTHONDONTWRITEBYTECODE=1 MPIEXEC=${MPIEXEC_EXECUTABLE})
  endforeach()
endif()
