"""Generated programs: targets agree with the interpreter, or all refuse alike."""

from __future__ import annotations

import random

import hypothesis
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import featgraph as fg
from featgraph.cuda import dialect
from tests.generated import check as checking
from tests.generated.check import check
from tests.generated.elsewhere import generate_elsewhere
from tests.generated.exclusive import check_exclusive
from tests.generated.programs import Case, generate
from tests.generated.script import minimised, script
from tests.generated.somewhere import generate_somewhere

#: Of the case that fails, a smaller one is found here, faster than hypothesis could.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)


def _deep() -> bool:
    return hypothesis.settings.get_current_profile_name() == "deep"


def _agrees(case: Case, target: str) -> None:
    report = check(case, target)
    if report.status == "failed":
        smaller = minimised(case, report, target, 60.0 if _deep() else 20.0)
        again = check(smaller, target)
        pytest.fail(script(smaller, again, target))


@st.composite
def programs(draw: st.DrawFn, work: int) -> Case:
    """Draw a program; its choices are hypothesis's."""
    return generate(draw(st.randoms(use_true_random=False)), work=work)


#: Seeds of the programs that run without the deep profile, too.
CPU_SEEDS = (1, 3, 5, 6, 9, 12)
EMULATED_SEEDS = (0, 1, 2, 3, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21)
#: Of programs that read elsewhere what others drop: each tells when an entry is put
#: back too early, or a function has read it in the same kernel.
ELSEWHERE_SEEDS = (16, 21, 28, 65, 124)
MANY_ELSEWHERE = 400
#: Monotone programs in any order, and reduces between functions.
SOMEWHERE_SEEDS = (0, 48, 2, 30, 3, 1, 7, 9)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("seed", CPU_SEEDS)
def test_programs_agree(seed: int, target: str) -> None:
    _agrees(generate(random.Random(seed), work=600), target)


@pytest.mark.skipif(not dialect.is_installed(), reason="needs numba-cuda, the dialect")
@pytest.mark.drawn(4)
@pytest.mark.parametrize("seed", EMULATED_SEEDS)
def test_programs_agree_on_an_emulated_gpu(seed: int) -> None:
    from tests.simt.gpu import emulated_gpu

    with emulated_gpu():
        _agrees(generate(random.Random(seed), work=300), "cuda")


@pytest.mark.parametrize("seed", [65])
def test_what_is_dropped_is_read_elsewhere(seed: int, target: str) -> None:
    _agrees(generate_elsewhere(random.Random(seed)), target)


@pytest.mark.skipif(not dialect.is_installed(), reason="needs numba-cuda, the dialect")
def test_what_is_dropped_is_read_elsewhere_on_an_emulated_gpu() -> None:
    from tests.simt.gpu import emulated_gpu

    with emulated_gpu():
        for seed in range(MANY_ELSEWHERE) if _deep() else ELSEWHERE_SEEDS:
            _agrees(generate_elsewhere(random.Random(seed)), "cuda")


@pytest.mark.drawn(2)
@pytest.mark.parametrize("seed", SOMEWHERE_SEEDS[:4])
def test_runs_that_begin_somewhere(seed: int, target: str) -> None:
    _agrees(generate_somewhere(random.Random(seed), work=300), target)


@pytest.mark.skipif(not dialect.is_installed(), reason="needs numba-cuda, the dialect")
@pytest.mark.drawn(4)
@pytest.mark.parametrize("seed", SOMEWHERE_SEEDS)
def test_runs_that_begin_somewhere_on_an_emulated_gpu(seed: int) -> None:
    from tests.simt.gpu import emulated_gpu

    with emulated_gpu():
        _agrees(generate_somewhere(random.Random(seed), work=200), "cuda")


def test_many_runs_that_begin_somewhere(target: str) -> None:
    if not _deep():
        pytest.skip("many programs: --hypothesis-profile deep")
    for seed in range(2000):
        _agrees(generate_somewhere(random.Random(seed)), target)


def test_many_programs_agree(target: str) -> None:
    if not _deep():
        pytest.skip("many programs: --hypothesis-profile deep")

    @settings(phases=PHASES)
    @given(programs(1500))
    def agrees(case: Case) -> None:
        _agrees(case, target)

    agrees()


#: Of exclusive functions.
EXCLUSIVE_SEEDS, MANY_EXCLUSIVE = (0, 1, 2, 7), 500


def test_exclusive_functions_agree(target: str) -> None:
    for seed in range(MANY_EXCLUSIVE) if _deep() else EXCLUSIVE_SEEDS:
        check_exclusive(seed, target)


@pytest.mark.skipif(not dialect.is_installed(), reason="needs numba-cuda, the dialect")
def test_exclusive_functions_agree_on_an_emulated_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from featgraph.fold.schedules.exclusive import ExclusiveSchedule
    from tests.simt.gpu import emulated_gpu

    # Blocks of the emulator run one by one, and may not wait for each other.
    monkeypatch.setattr(ExclusiveSchedule, "resident", 1)
    with emulated_gpu():
        for seed in range(MANY_EXCLUSIVE // 10) if _deep() else EXCLUSIVE_SEEDS:
            check_exclusive(seed, "cuda", 12)


def test_what_the_interpreter_refuses_is_folded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = generate(random.Random(5081), work=150)
    monkeypatch.setattr(checking, "interpret", _refuse)
    assert check(case, "cpu").kind.startswith("folds, but the interpreter")


def _refuse(*_: object) -> list[object]:
    raise fg.UserFunctionError("a rule that the folder does not know")
