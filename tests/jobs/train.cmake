if(TARGET train AND TARGET tokenize AND TARGET convert AND Python3_FOUND)
  foreach(case Equality Resume Kills Edges Options Unequal)
    add_test(NAME jobs.train.${case}
             COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/train_test.py ${case})
    tessera_test_properties(jobs.train.${case} cpu 2 300 "")
    set_property(TEST jobs.train.${case} APPEND PROPERTY ENVIRONMENT
                 PYTHONDONTWRITEBYTECODE=1 MPIEXEC=${MPIEXEC_EXECUTABLE})
  endforeach()
  foreach(case Evaluations Targets Tokenizers Changes)
    add_test(NAME jobs.data.${case}
             COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/data_test.py ${case})
    tessera_test_properties(jobs.data.${case} cpu 2 300 "")
    set_property(TEST jobs.data.${case} APPEND PROPERTY ENVIRONMENT
                 PYTHONDONTWRITEBYTECODE=1 MPIEXEC=${MPIEXEC_EXECUTABLE})
  endforeach()
endif()
