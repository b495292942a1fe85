find_library(SENTENCEPIECE_TRAIN_LIBRARY sentencepiece_train REQUIRED)
tessera_add_test(NAME jobs.tokenize
                 SOURCES tokenize_test.cpp ${CMAKE_SOURCE_DIR}/jobs/tokenize/space_cut.cpp
                         ${CMAKE_SOURCE_DIR}/jobs/tokenize/sentencepiece_model.cpp
                         ${CMAKE_SOURCE_DIR}/jobs/tokenize/outputs.cpp
                 USES tessera_data tessera_command_words tessera_tokenizer ${SENTENCEPIECE_TRAIN_LIBRARY}
                 TIMEOUT 300)
add_dependencies(test_jobs_tokenize_cpu tokenize)
tessera_add_test(NAME jobs.records SOURCES records_test.cpp
                 USES tessera_data tessera_tokenizer TIMEOUT 300)
add_dependencies(test_jobs_records_cpu tokenize)
if(TARGET tessera_zstd)
  tessera_add_test(NAME jobs.zstd_records SOURCES zstd_records_test.cpp USES tessera_data)
  add_dependencies(test_jobs_zstd_records_cpu tokenize)
endif()
