#include "model/huggingface_writer.h"

#include "model/huggingface.h"

namespace tessera {

HuggingFaceWriter::HuggingFaceWriter(const std::filesystem::path& folder, const ModelConfig& config,
                                     const HuggingFaceOptions& options)
    : place_(folder), files_(place_.path(), config, options, SafetensorsShare::whole) {}

void HuggingFaceWriter::finish() {
  files_.close();
  files_.write_config();
  place_.finish(kConfigFile);
}

}  // namespace tessera
