# shellcheck shell=bash disable=SC2154
# Sourced by the scripts of a GPU bundle: sets `libraries`, the folders for LD_LIBRARY_PATH. `here` is the bundle.
# cuDNN and NCCL may be in the folders of Python packages only; the toolkit's own come first.
libraries=$here/lib
for folder in /usr/local/cuda/lib64 /usr/local/cuda/lib; do
  [ -d "$folder" ] && libraries+=:$folder
done
if command -v python3 >/dev/null 2>&1; then
  libraries+=$(python3 - <<'PYTHON'
import glob
import os
import site
import sys

folders = site.getsitepackages() + [site.getusersitepackages()] + sys.path
found = sorted({f for base in folders if base for f in glob.glob(os.path.join(base, "nvidia", "*", "lib"))})
print("".join(":" + f for f in found))
PYTHON
  )
fi
libraries+=${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
