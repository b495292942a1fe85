// What the blocks of a cluster need to tell each other one thing each: a barrier that is entered
// long before its wait, and a message into every block's shared memory that announces
// itself. For compute capability 9.0 and later; the PTX ISA's chapters on barrier.cluster, mbarrier
// and st.async.
//
// Cooperative Groups' cluster.sync() would do, with a fence over all memory on either side.
#pragma once

#include <cstdint>

namespace tessera::cuda {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

[[nodiscard]] __device__ __forceinline__ unsigned shared_address(const void* shared) {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}

/// Number of blocks in this cluster, and of this block among them.
[[nodiscard]] __device__ __forceinline__ unsigned cluster_blocks() {
  unsigned count = 0;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(count));
  return count;
}
[[nodiscard]] __device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank = 0;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// Makes a barrier of shared memory that one arrival and the bytes it announces complete. By one
/// thread, followed by `announce_barriers` and a barrier of the block.
__device__ __forceinline__ void open_barrier(std::uint64_t& barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;"
               :
               : "r"(shared_address(&barrier))
               : "memory");
}
/// Lets peers and copies see what `open_barrier` made.
__device__ __forceinline__ void announce_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
  asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}
/// The one arrival of a phase: it is complete when `bytes` more have come.
__device__ __forceinline__ void arrive(std::uint64_t& barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :
               : "r"(shared_address(&barrier)), "r"(bytes)
               : "memory");
}
/// Waits until the phase of this parity, 0 at first and then in turn, is complete.
__device__ __forceinline__ void await(std::uint64_t& barrier, unsigned parity) {
  unsigned complete = 0;
  while (complete == 0) {
    asm volatile("{\n"
                 ".reg .pred complete;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 complete, [%1], %2;\n"
                 "selp.b32 %0, 1, 0, complete;\n"
                 "}"
                 : "=r"(complete)
                 : "r"(shared_address(&barrier)), "r"(parity)
                 : "memory");
  }
}
/// Starts a copy of `bytes`, a multiple of 16, from global to this block's shared memory, both at
/// multiples of 16 bytes. What has come counts at `barrier`.
__device__ __forceinline__ void fetch(void* to, const void* from, unsigned bytes,
                                      std::uint64_t& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
      :
      : "r"(shared_address(to)), "l"(__cvta_generic_to_global(from)), "r"(bytes),
        "r"(shared_address(&barrier))
      : "memory");
}

/// One message of 16 bytes from every block of the cluster.
struct Mailbox {
  uint4 messages[8];  // of block k at k; 8 blocks at most
  std::uint64_t barrier;
};

/// Says that this thread's block has begun. By all threads, once.
__device__ __forceinline__ void enter_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" : : : "memory");
}
/// Waits until all threads of the cluster have entered: from then on their mailboxes take messages.
__device__ __forceinline__ void await_cluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" : : : "memory");
}

/// Puts a message into slot `rank` of block `to`'s mailbox.
__device__ __forceinline__ void send(Mailbox& mailbox, unsigned rank, unsigned to,
                                     const uint4& message) {
  unsigned slot = 0;
  unsigned barrier = 0;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(slot)
               : "r"(shared_address(&mailbox.messages[rank])), "r"(to));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(barrier)
               : "r"(shared_address(&mailbox.barrier)), "r"(to));
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
      :
      : "r"(slot), "r"(message.x), "r"(message.y), "r"(message.z), "r"(message.w), "r"(barrier)
      : "memory");
}

#endif

}  // namespace tessera::cuda
