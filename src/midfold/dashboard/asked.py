"""What a request asks for: parameters, checked against what the API says about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from midfold.dashboard.access import Sees
from midfold.dashboard.links import name_of
from midfold.errors import MidfoldError, NotStored

if TYPE_CHECKING:
    from starlette.requests import Request

LARGEST = 2**53 - 1
LONGEST = 1_000


class BadRequest(MidfoldError):
    """A parameter is not what was expected."""

    status = 400


class Param(NamedTuple):
    """One parameter. A number is at least 0; a text is one of `choices`, if there are any."""

    name: str
    where: Literal["path", "query"]
    what: str
    number: bool = False
    choices: tuple[str, ...] = ()

    def value(self, given: str | None) -> Any:
        """The checked value; None or an empty text if it was not given."""
        if self.number:
            return self._number(given)
        text = given or ""
        if len(text) > LONGEST:
            raise BadRequest(f"{self.name} is longer than {LONGEST:,} characters")
        if self.choices and text and text not in self.choices:
            raise BadRequest(f"{self.name} is not one of {', '.join(self.choices)}")
        return text

    def _number(self, given: str | None) -> int | None:
        if given is None or given == "":
            return None
        if not (given.isascii() and given.isdigit() and len(given) <= 16 and int(given) <= LARGEST):
            kind = NotStored if self.where == "path" else BadRequest
            raise kind(f"{self.name} is not a number from 0 on")
        return int(given)


class Asked:
    """The values of one request, and what its caller may see."""

    def __init__(self, request: Request, params: tuple[Param, ...], sees: Sees) -> None:
        self.sees = sees
        self.values: dict[str, Any] = {}
        for param in params:
            source = request.path_params if param.where == "path" else request.query_params
            if param.where == "query" and len(request.query_params.getlist(param.name)) > 1:
                raise BadRequest(f"{param.name} is given more than once")
            self.values[param.name] = param.value(source.get(param.name))

    @property
    def name(self) -> str:
        """The session that was asked for."""
        name = name_of(self.values["key"])
        if name is None:
            raise NotStored("there is no such session")
        return name

    def text(self, name: str) -> str:
        value: str = self.values[name]
        return value

    def number(self, name: str, default: int = 0) -> int:
        value: int | None = self.values[name]
        return default if value is None else value

    def number_if_given(self, name: str) -> int | None:
        value: int | None = self.values[name]
        return value
