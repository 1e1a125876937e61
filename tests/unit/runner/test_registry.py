"""A runner says which modules it has, and which are idempotent."""

from typing import Any

from services.rendering import Rendering
from services.runner.app.modules import built_in
from services.runner.core.egress import Egress
from windlass.sdk import Context, Registry


def test_modules_whose_work_may_be_done_twice_are_named() -> None:
    registry = Registry()
    for module in built_in(Egress(), Rendering()):
        registry.add(module)

    def work(_ctx: Context, _inputs: Any, _config: Any) -> None: ...

    registry.declare("test.put@1", idempotent=True)(work)
    registry.declare("test.add@1")(work)
    assert set(registry) - set(registry.idempotent) == {"http.request@1", "test.add@1"}
    assert "test.put@1" in registry.idempotent
