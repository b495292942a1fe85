#define BOOST_TEST_MODULE job_shape
#include "runtime/launch/job_shape.h"

#include <numeric>
#include <string>
#include <vector>

#include <boost/test/unit_test.hpp>
#include <fmt/format.h>

namespace tessera::test {
namespace {

std::vector<int> from_to(int first, int last) {
  std::vector<int> numbers(static_cast<std::size_t>(last - first + 1));
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

// Hosts a, b, ... of `gpus` GPUs with `each` ranks, every one beside a GPU of its own.
std::vector<RankShape> well_placed(int hosts, int each, int gpus) {
  constexpr int kCores = 4;
  std::vector<RankShape> ranks;
  for (int host = 0; host < hosts; ++host) {
    for (int local = 0; local < each; ++local) {
      const std::vector<int> cores = from_to(local * kCores, local * kCores + kCores - 1);
      ranks.push_back({.rank = host * each + local,
                       .host = std::string(1, static_cast<char>('a' + host)),
                       .bus_id = fmt::format("0000:0{}:00.0", local),
                       .gpus_of_host = gpus,
                       .threads = 1,
                       .cores = cores,
                       .near_cores = cores});
    }
  }
  return ranks;
}

std::string texts_of(const std::vector<RankShape>& ranks) {
  std::string all;
  for (const std::string& text : job_shape_texts(ranks)) {
    all += text + "\n";
  }
  return all;
}

RankShape cpu_rank(int cores, int threads) {
  return {.rank = 0,
          .host = "a",
          .bus_id = {},
          .gpus_of_host = 0,
          .threads = threads,
          .cores = from_to(0, cores - 1),
          .near_cores = {}};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(job_shape)

BOOST_AUTO_TEST_CASE(a_rank_beside_each_gpu_needs_no_word) {
  BOOST_TEST(texts_of(well_placed(2, 4, 4)) == "");
  std::vector<RankShape> unknown = well_placed(1, 2, 2);
  unknown[0].near_cores = {};
  unknown[1].cores = {};
  BOOST_TEST(texts_of(unknown) == "");
}

BOOST_AUTO_TEST_CASE(gpus_without_a_rank_are_named) {
  BOOST_TEST(texts_of(well_placed(1, 4, 8)) ==
             "a has 8 GPUs and 4 ranks: 4 GPUs are without work; --ntasks-per-node 8 (Slurm) or "
             "--map-by ppr:8:node (mpirun) uses all\n");
  BOOST_TEST(texts_of(well_placed(3, 3, 4)) ==
             "a has 4 GPUs and 3 ranks: 1 GPU is without work; --ntasks-per-node 4 (Slurm) or "
             "--map-by ppr:4:node (mpirun) uses all (and 2 hosts more)\n");
}

BOOST_AUTO_TEST_CASE(gpus_beside_ranks_on_cpus_are_named) {
  std::vector<RankShape> ranks = {cpu_rank(4, 4)};
  BOOST_TEST(texts_of(ranks) == "");
  ranks[0].gpus_of_host = 2;
  BOOST_TEST(
      texts_of(ranks) ==
      "a has 2 GPUs, and the ranks compute on its CPUs (--device cpu, the default): --device "
      "cuda is many times as fast\n");
}

BOOST_AUTO_TEST_CASE(ranks_that_share_a_gpu_are_named) {
  std::vector<RankShape> ranks = well_placed(1, 4, 2);
  ranks[2].bus_id = ranks[0].bus_id;
  ranks[3].bus_id = ranks[1].bus_id;
  BOOST_TEST(texts_of(ranks) ==
             "4 ranks of a share 2 GPUs: give each a GPU of its own, with --ntasks-per-node 2 "
             "(Slurm) or --map-by ppr:2:node (mpirun)\n");
}

BOOST_AUTO_TEST_CASE(a_binding_far_from_the_gpu_is_named_with_both_places) {
  std::vector<RankShape> ranks = well_placed(2, 2, 2);
  ranks[3].near_cores = from_to(32, 63);
  BOOST_TEST(
      texts_of(ranks) ==
      "rank 3 on b is bound to cores 4-7, far from its GPU (0000:01:00.0, near cores 32-63): "
      "bind it there, with --gpu-bind=closest or --cpu-bind (Slurm), or --bind-to none "
      "(mpirun)\n");
  ranks[3].cores = from_to(30, 32);  // one of them is near
  BOOST_TEST(texts_of(ranks) == "");
}

BOOST_AUTO_TEST_CASE(a_rank_with_too_few_cores_is_named) {
  std::vector<RankShape> ranks = well_placed(1, 2, 2);
  ranks[1].cores = ranks[1].near_cores = {4};
  BOOST_TEST(texts_of(ranks) ==
             "rank 1 on a may use 1 core for its own thread, the loader of batches and the writer "
             "of saves: give it 2 or more, with --cpus-per-task 2 (Slurm) or --map-by ...:PE=2 "
             "(mpirun)\n");
  BOOST_TEST(texts_of({cpu_rank(2, 4)}) ==
             "rank 0 on a may use 2 cores for --threads 4: give it 4 or more, with "
             "--cpus-per-task 4 (Slurm) or --map-by ...:PE=4 (mpirun)\n");
  BOOST_TEST(texts_of({cpu_rank(4, 4)}) == "");
}

BOOST_AUTO_TEST_CASE(nccl_kept_from_the_links_of_its_host_is_named) {
  std::vector<RankShape> ranks = well_placed(2, 2, 2);
  ranks[1].nccl_disabled = {"NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"};
  BOOST_TEST(texts_of(ranks) ==
             "NCCL_P2P_DISABLE and NCCL_SHM_DISABLE are set on a: NCCL goes from GPU to GPU of a "
             "host by network sockets; unset them unless a fault needs them; --peer-copies auto "
             "exchanges by copy engines all the same\n");
  ranks[1].nccl_disabled = {"NCCL_P2P_DISABLE"};
  BOOST_TEST(texts_of(ranks).starts_with(
      "NCCL_P2P_DISABLE is set on a: NCCL goes from GPU to GPU of a host by way of the host's "
      "memory; unset it unless"));
  ranks = well_placed(2, 1, 1);  // no GPU of the same host to go to
  ranks[0].nccl_disabled = {"NCCL_P2P_DISABLE"};
  BOOST_TEST(texts_of(ranks) == "");
}

BOOST_AUTO_TEST_CASE(a_shape_goes_through_its_text) {
  std::vector<RankShape> ranks = well_placed(2, 2, 8);
  ranks[2].nccl_disabled = {"NCCL_SHM_DISABLE"};
  for (const RankShape& shape : ranks) {
    BOOST_TEST((rank_shape(to_text(shape)) == shape));
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
