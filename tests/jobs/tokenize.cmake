find_library(SENTENCEPIECE_TRAIN_LIBRARY sentencepiece_train REQUIRED)
tessera_add_test(NAME jobs.tokenize
                 SOURCES tokenize_test.cpp ${CMAKE_SOURCE_DIR}/jobs/tokenize/space_cut.cpp
                         ${CMAKE_SOURCE_DIR}/jobs/tokenize/sentencepiece_model.cpp
                         ${CMAKE_SOURCE_DIR}/jobs/tokenize/outputs.cpp
                 USES tessera_data tessera_command_words tessera_tokenizer ${SENTENCEPIECE_TRAIN_LIBRARY}
                 TIMEOUT 300)
add_dependencies(test_jobs_tokenize_cpu tokenize)
