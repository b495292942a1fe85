from spack_repo.builtin.build_systems.cmake import CMakePackage
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Tessera(CMakePackage, CudaPackage):
    """Trains and fine-tunes language models on all ranks of an MPI job: ZeRO shards, paged optimizer state,
    results that do not depend on the number of ranks, HDF5 checkpoints.

    There is no source to download: it is installed from a checkout, by dev_path (jobs/packages/README.md). With +cuda
    that checkout needs the headers of cudnn-frontend first: bash jobs/get-cudnn-frontend.sh."""

    license("MIT")

    version("0.1.0")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("mpi")
    depends_on("hdf5@1.10:")
    depends_on("boost@1.74: +program_options")
    depends_on("onednn@2:")
    depends_on("nlohmann-json@3.11:")
    depends_on("fmt@9:")
    depends_on("xxhash@0.8:")
    depends_on("sentencepiece@0.1.97:")
    depends_on("pcre2@10.40:")
    depends_on("utf8proc@2.8: +shared")
    depends_on("zlib-api")
    depends_on("zstd@1.5:")
    with when("+cuda"):
        depends_on("cuda@12:")
        depends_on("cudnn@9:")
        conflicts("cuda_arch=none", msg="name the GPUs' architecture, such as cuda_arch=90")
    for arch in CudaPackage.cuda_arch_values:
        depends_on(f"nccl cuda_arch={arch}", when=f"+cuda cuda_arch={arch}")

    conflicts("%gcc@:11", msg="C++20 as tessera uses it is tested from GCC 12 on")

    def cmake_args(self):
        args = [
            self.define("TESSERA_TESTS", False),
            self.define_from_variant("TESSERA_CUDA", "cuda"),
        ]
        if self.spec.satisfies("+cuda"):
            args += [
                self.define("CMAKE_CUDA_ARCHITECTURES", self.spec.variants["cuda_arch"].value),
                self.define("CUDNN_ROOT", self.spec["cudnn"].prefix),
                self.define("NCCL_ROOT", self.spec["nccl"].prefix),
            ]
        return args

    def setup_run_environment(self, env: EnvironmentModifications) -> None:
        env.set("TESSERA_SHARE", self.prefix.share.tessera)
        env.set("TESSERA_DOC", self.prefix.share.doc.tessera)
