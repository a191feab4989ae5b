"""Definition of a configuration property (type, default, bounds, update mode), and the reader of the tables of properties.

The tables (broker_configs.py, topic_configs.py, group_configs.py) are text, one property a line, so that they can be compared
with Kafka's documentation:

    name type default validator importance [cluster|broker] [internal]

- type: boolean int short long double string list class password
- default: `-` is null, `""` an empty string, `!` none at all (the property must be given)
- validator: `*` the type only, `[1,...]` a range, `in:a,b` one of these strings; see validators.py
- cluster / broker: Kafka's update modes: the property may be changed while the broker runs, for the whole cluster (or one
  broker) or for one broker only; without either it is read-only

Values are stored and sent as strings; `ConfigKey.parse` returns the typed value or raises `ConfigError` with Kafka's message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from barnabas.controller.config.validators import ConfigError, validator_named

Value = bool | int | float | str | list[str] | None

READ_ONLY: Final = "read-only"
CLUSTER_WIDE: Final = "cluster-wide"
PER_BROKER: Final = "per-broker"
_MODES: Final = {"cluster": CLUSTER_WIDE, "broker": PER_BROKER}

# DescribeConfigs' ConfigType (KIP-569).
TYPE_CODES: Final = {
    "boolean": 1,
    "string": 2,
    "int": 3,
    "short": 4,
    "long": 5,
    "double": 6,
    "list": 7,
    "class": 8,
    "password": 9,
}
_BITS: Final = {"short": 16, "int": 32, "long": 64}


class ConfigKey(msgspec.Struct, frozen=True):
    """One property, from its line in the table."""

    name: str
    type: str
    default: str | None
    required: bool
    validator: str
    importance: str
    update_mode: str = READ_ONLY
    internal: bool = False

    @property
    def sensitive(self) -> bool:
        """Never shown: passwords."""
        return self.type == "password"

    @property
    def type_code(self) -> int:
        return TYPE_CODES[self.type]

    def parse(self, text: str | None) -> Value:
        """The typed value of a property's text; None for null. ConfigError as Kafka words it."""
        value = self._typed(text)
        check = validator_named(self.validator)
        if check is not None:
            check(self.name, value)
        return value

    def _typed(self, text: str | None) -> Value:
        if text is None:
            return None
        stripped = text.strip()
        if self.type == "boolean":
            if stripped.lower() not in ("true", "false"):
                raise ConfigError.invalid(self.name, stripped, "Expected value to be either true or false")
            return stripped.lower() == "true"
        if self.type in _BITS:
            return self._integer(stripped)
        if self.type == "double":
            return self._double(stripped)
        if self.type == "list":
            return [part.strip() for part in stripped.split(",")] if stripped else []
        return stripped

    def _integer(self, text: str) -> int:
        bits = _BITS[self.type]
        digits = text[1:] if text[:1] in ("+", "-") else text
        if digits.isdecimal() and digits.isascii() and len(digits) <= 20:
            value = int(text)
            if -(1 << (bits - 1)) <= value < 1 << (bits - 1):
                return value
        raise ConfigError.invalid(self.name, text, f"Not a number of type {self.type.upper()}")

    def _double(self, text: str) -> float:
        try:
            # Python reads digit separators that Java does not.
            return float("_" if "_" in text else text)
        except ValueError:
            raise ConfigError.invalid(self.name, text, "Not a number of type DOUBLE") from None


class ConfigDef(Mapping[str, ConfigKey]):
    """A table of properties, by name, in the table's order.

    `family` finds properties with open-ended names, which are not listed.
    """

    def __init__(self, *tables: str) -> None:
        self._keys: dict[str, ConfigKey] = {}
        self._family: Callable[[str], ConfigKey | None] | None = None
        for table in tables:
            for line in table.splitlines():
                if line and not line.startswith("#"):
                    key = _parse_line(line)
                    self._keys[key.name] = key

    def extended(
        self, others: Iterable[ConfigDef], family: Callable[[str], ConfigKey | None] | None = None
    ) -> ConfigDef:
        """These properties, then those of `others`."""
        made = ConfigDef()
        for each in (self, *others):
            made._keys.update(each._keys)
        made._family = family
        return made

    def __getitem__(self, name: str) -> ConfigKey:
        key = self._keys.get(name)
        if key is None and self._family is not None:
            key = self._family(name)
        if key is None:
            raise KeyError(name)
        return key

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def validate(self, properties: Mapping[str, str], unknown: Callable[[str], Exception]) -> None:
        """Every value against its type and bounds; the first name not in the table raises `unknown(name)`."""
        for name in properties:
            if name not in self._keys:
                raise unknown(name)
        # In the table's order, so that which of several errors is reported does not depend on the client.
        for name, key in self._keys.items():
            if name in properties:
                key.parse(properties[name])


def _parse_line(line: str) -> ConfigKey:
    name, type_, default, validator, importance, *rest = line.split()
    assert type_ in TYPE_CODES, line
    mode = next((_MODES[word] for word in rest if word in _MODES), READ_ONLY)
    return ConfigKey(
        name=name,
        type=type_,
        default=None if default in ("-", "!") else "" if default == '""' else default,
        required=default == "!",
        validator=validator,
        importance=importance,
        update_mode=mode,
        internal="internal" in rest,
    )
