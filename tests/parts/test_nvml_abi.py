import ctypes
import json
import subprocess
from pathlib import Path

import pynvml
import pytest
from tests.parts.fake_nvml import nvml_include_directory
from tests.parts.needs import require

pytestmark = pytest.mark.parts

STRUCT_OF = {
    "nvmlMemory_t": pynvml.c_nvmlMemory_t,
    "nvmlMemory_v2_t": pynvml.c_nvmlMemory_v2_t,
    "nvmlProcessInfo_t": pynvml.c_nvmlProcessInfo_v3_t,
    "nvmlUtilization_t": pynvml.c_nvmlUtilization_t,
    "nvmlTemperature_v1_t": pynvml.c_nvmlTemperature_v1_t,
    "nvmlDeviceAttributes_t": pynvml.c_nvmlDeviceAttributes,
}


def test_pynvml_and_nvml_h_agree_on_every_struct_we_read(tmp_path: Path) -> None:
    """Sizes of the structs, and the version tag of memory, as a C compiler sees nvml.h."""
    prints = "".join(f'printf("\\"{struct}\\": %zu, ", sizeof({struct}));' for struct in STRUCT_OF)
    source = tmp_path / "sizes.c"
    source.write_text(
        "#include <nvml.h>\n#include <stdio.h>\n"
        f'int main(void) {{ printf("{{"); {prints} printf("\\"v2\\": %u}}", nvmlMemory_v2); }}\n'
    )
    program = tmp_path / "sizes"
    include = f"-I{nvml_include_directory()}"
    subprocess.run([require("gcc"), include, "-o", program, source], check=True, timeout=60)

    printed = subprocess.run([program], check=True, timeout=10, capture_output=True, text=True)
    expected = json.loads(printed.stdout)

    actual = {struct: ctypes.sizeof(layout) for struct, layout in STRUCT_OF.items()}
    assert actual | {"v2": pynvml.nvmlMemory_v2} == expected
