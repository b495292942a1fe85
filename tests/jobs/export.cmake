# What train --export writes, beside what convert writes.
if(TARGET train AND TARGET tokenize AND TARGET convert AND Python3_FOUND)
  foreach(case Bits Reruns Refusals Failures)
    add_test(NAME jobs.export.${case}
             COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/export_test.py ${case})
    tessera_test_properties(jobs.export.${case} cpu 2 300 "")
    set_property(TEST jobs.export.${case} APPEND PROPERTY ENVIRONMENT
                 PYTHONDONTWRITEBYTECODE=1 MPIEXEC=${MPIEXEC_EXECUTABLE} BAD_DISK=$<TARGET_FILE:bad_disk>
                 STOPPED_RANK_LIBRARY=$<TARGET_FILE:stopped_rank> PRELOAD_FIRST=${preload_first})
  endforeach()
endif()
# A newcomer's job, from a Hugging Face folder and chats to a Hugging Face folder.
if(TARGET train AND TARGET tokenize AND TARGET convert AND TARGET generate AND Python3_FOUND AND TARGET tessera_pcre2
   AND TARGET tessera_utf8proc)
  add_test(NAME jobs.newcomer COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/newcomer_test.py)
  tessera_test_properties(jobs.newcomer cpu 2 300 "")
  set_property(TEST jobs.newcomer APPEND PROPERTY ENVIRONMENT
               PYTHONDONTWRITEBYTECODE=1 MPIEXEC=${MPIEXEC_EXECUTABLE})
endif()
