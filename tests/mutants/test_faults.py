"""The faults still fit the code, so that the list cannot rot."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.faults import FAULTS, Fault

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_fits_the_code(fault: Fault) -> None:
    path = ROOT / fault.file
    text = path.read_text()
    assert text.count(fault.old) == 1
    compile(text.replace(fault.old, fault.new), str(path), "exec")
    assert (ROOT / fault.tests[0]).exists()


def test_faults_have_names_of_their_own() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
