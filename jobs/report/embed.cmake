# Writes OUTPUT, a source with the text of page/page.html, style.css and page.js:
#   cmake -DFOLDER=jobs/report/page -DOUTPUT=page_files.cpp -P embed.cmake
set(source "#include \"jobs/report/page_files.h\"\n\nnamespace tessera::page_files {\n\n")
foreach(entry kBody=page.html kStyle=style.css kScript=page.js)
  string(REGEX MATCH "^([^=]+)=(.+)$" matched ${entry})
  set(name ${CMAKE_MATCH_1})
  file(READ "${FOLDER}/${CMAKE_MATCH_2}" text)
  if(text MATCHES "</(script|style)|\\)embedded\"")
    message(FATAL_ERROR "${CMAKE_MATCH_2} would end the element or the literal that holds it")
  endif()
  string(APPEND source "const char* const ${name} = R\"embedded(${text})embedded\";\n\n")
endforeach()
string(APPEND source "}  // namespace tessera::page_files\n")
file(WRITE "${OUTPUT}" "${source}")
