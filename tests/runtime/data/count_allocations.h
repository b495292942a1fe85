// Counts operator new of one thread. The operators are in a file of their own, so that the compiler
// does not look through them.
#pragma once

namespace tessera::test {

/// From now on the calling thread's allocations are counted, from 0.
void start_counting_allocations() noexcept;
/// Stops, and tells how many there were.
[[nodiscard]] int stop_counting_allocations() noexcept;

}  // namespace tessera::test
