import pytest

from kvheadroom.live.program_names import program_name


@pytest.mark.parametrize(
    ("comm", "name"),
    [
        ("python3", "python"),
        ("python3.11", "python"),
        ("pt_main_thread", "python"),
        ("Xorg", "Xorg"),
        ("ollama", "ollama"),
        ("ray::RayWorkerW", "ray"),
        ("text-embeddings", "text-embeddings-router"),
        ("nvidia-cuda-mps", "nvidia-cuda-mps-server"),
    ],
)
def test_what_is_met_on_gpus_has_its_name(comm: str, name: str) -> None:
    """Also where the kernel cut it to 15 characters, and PyTorch renamed its threads."""
    assert program_name(comm) == name


@pytest.mark.parametrize("comm", [None, "", "customer-x-job", "python3 --key=1", "x" * 400, "é"])
def test_what_a_user_named_is_other(comm: str | None) -> None:
    """A label has few values and tells nobody's business."""
    assert program_name(comm) == "other"
