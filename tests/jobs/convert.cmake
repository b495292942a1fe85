if(TARGET convert AND Python3_FOUND)
  add_test(NAME jobs.convert
           COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/convert_test.py)
  tessera_test_properties(jobs.convert cpu 1 300 "")
  set_property(TEST jobs.convert APPEND PROPERTY ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
endif()
