// The files of jobs/report/page as text, put into the program by embed.cmake.
#pragma once

namespace tessera::page_files {

extern const char* const kBody;
extern const char* const kStyle;
extern const char* const kScript;

}  // namespace tessera::page_files
