"""What `import fedagent` costs and offers."""

import subprocess
import sys

import pytest

import fedagent

LOADED = """
import sys
before = set(sys.modules)
import fedagent
print(*sorted(name.partition(".")[0] for name in set(sys.modules) - before))
"""


def looked(program: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_it_imports_next_to_nothing() -> None:
    # How long it takes is measured in `python -m bench import`.
    others = set(looked(LOADED)) - sys.stdlib_module_names
    assert others == {"fedagent"}


def test_every_name_is_there_and_typed() -> None:
    assert dir(fedagent) == sorted(fedagent.__all__)
    for name in fedagent.__all__:
        assert getattr(fedagent, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'teach'"):
        _ = fedagent.teach


def test_no_name_brings_torch() -> None:
    every = "import fedagent, sys; [getattr(fedagent, n) for n in fedagent.__all__]; "
    assert looked(every + "print('torch' in sys.modules)") == ["False"]
