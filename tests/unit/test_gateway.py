"""Names of Java's classes are asked for once, values each time."""

from __future__ import annotations

from harness.gateway import _remembering


class Name(str):
    """What a name stands for."""


class Package:
    """As py4j's: what it has not, it asks Java for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def ask(self, name: str) -> object:
        if name == "missing":
            raise AttributeError(name)
        self.asked.append(name)
        return Name(name) if name.istitle() else len(self.asked)

    __getattr__ = _remembering(ask, (Name,))


def test_a_class_is_asked_for_once_and_a_value_each_time() -> None:
    package = Package()

    assert [package.Class, package.Class] == [Name("Class")] * 2
    assert (package.field, package.field) == (2, 3)
    assert package.asked == ["Class", "field", "field"]


def test_what_is_missing_stays_missing_and_others_ask_for_themselves() -> None:
    package = Package()

    assert not hasattr(package, "missing")
    assert package.Class == Package().Class
    assert package.asked == ["Class"]
