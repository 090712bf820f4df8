import sys
from types import SimpleNamespace

import pytest
from bench import __main__ as bench
from bench.figures import Figure


@pytest.mark.parametrize(
    ("value", "at_least", "at_most", "holds"),
    [
        (60.0, 60, None, True),
        (59.99, 60, None, False),
        (20.0, None, 20, True),
        (20.01, None, 20, False),
        (1e9, None, None, True),
    ],
)
def test_a_limit_has_no_allowance(
    value: float, at_least: float | None, at_most: float | None, *, holds: bool
) -> None:
    """A figure at its limit is good enough, one beyond it by anything is not."""
    assert Figure("", value, "", at_least=at_least, at_most=at_most).holds is holds


@pytest.mark.parametrize(("values", "status"), [((19.0, 20.0), 0), ((21.0, 19.0), 1)])
def test_a_missed_limit_is_the_exit_status(
    values: tuple[float, ...],
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All figures are measured all the same, and the missed one is named at the end."""
    made = [Figure(f"{value:g}", value, "ms", at_most=20) for value in values]
    monkeypatch.setitem(sys.modules, "bench.made", SimpleNamespace(figures=lambda: iter(made)))
    monkeypatch.setattr(sys, "argv", ["bench", "made"])

    assert bench.main() == status
    said = capsys.readouterr()
    assert all(str(figure) in said.out for figure in made)
    assert [figure for figure in made if str(figure) in said.err] == [
        figure for figure in made if not figure.holds
    ]
