"""The CPU time that workspaces may use for their templates."""

from services.rendering.cpu_budget import BURST_SECONDS, KEPT_MAX, RATE, CpuBudgets


def test_a_workspace_waits_until_enough_of_what_it_used_is_forgotten() -> None:
    budgets = CpuBudgets()
    assert budgets.wait("w", 0.0) == 0.0
    budgets.spend("w", BURST_SECONDS, 0.0)
    assert budgets.wait("w", 0.0) == 0.0
    budgets.spend("w", 3.0, 0.0)
    assert budgets.wait("w", 0.0) == 3.0 / RATE
    assert budgets.wait("other", 0.0) == 0.0
    assert budgets.wait("w", 1.0) == 3.0 / RATE - 1.0
    assert budgets.wait("w", 3.0 / RATE) == 0.0


def test_what_is_spent_comes_on_top_of_what_is_left() -> None:
    budgets = CpuBudgets()
    budgets.spend("w", 8.0, 0.0)
    budgets.spend("w", 8.0, 8.0)
    assert budgets.wait("w", 8.0) == (8.0 - 8.0 * RATE + 8.0 - BURST_SECONDS) / RATE
    budgets.spend("w", 1.0, 1_000.0)
    assert budgets.wait("w", 1_000.0) == 0.0


def test_workspaces_without_debts_are_dropped() -> None:
    budgets = CpuBudgets()
    budgets.spend("greedy", 1_000.0, 0.0)
    for number in range(KEPT_MAX):
        budgets.spend(f"w{number}", 0.1, float(number))
    assert budgets.wait("greedy", float(KEPT_MAX)) > 0.0
