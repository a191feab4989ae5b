"""Generates the function that writes one message in one version, the mirror of codegen_readers.

Parts go to `append`; each run of fixed-size fields, with the length or tag section behind it, is one struct
call. A tagged field is written when its value differs from its default (KIP-482), its value first into a list
of its own, because its size stands in front of it.
"""

from __future__ import annotations

from barnabas.wire.codegen import Source, default_of, flexible, split_fields
from barnabas.wire.schema_parser import FIXED, Field, Message, Struct


def generate_writer(message: Message, version: int, structs: dict[str, str], defaults: set[str]) -> list[str]:
    """The body of the writer, without its `def` line. `defaults` gathers structs whose default is compared."""
    return _WriterGenerator(message, version, structs, defaults).body()


class _WriterGenerator:
    def __init__(self, message: Message, version: int, structs: dict[str, str], defaults: set[str]) -> None:
        self._message = message
        self._version = version
        self._flexible = flexible(message, version)
        self._source = Source(structs)
        self._defaults = defaults
        self._run: list[tuple[str, str]] = []  # (struct code, expression)
        self._append = "append"

    def body(self) -> list[str]:
        self._struct(self._message.root, "message")
        self._flush()
        if not self._source.lines:
            self._source.emit("pass")
        return [
            "    try:",
            *self._source.lines,
            "    except UNENCODABLE as error:",
            f'        raise unencodable("{self._message.name}", error) from error',
        ]

    # -- structs and tagged fields ----------------------------------------------------------------------

    def _struct(self, struct: Struct, variable: str) -> None:
        plain, tagged = split_fields(struct, self._version, self._flexible)
        for field in plain:
            self._field(field, f"{variable}.{_attribute(field)}", f"{struct.name}.{field.name}")
        if not self._flexible:
            return
        if tagged:
            self._tagged(struct, tagged, variable)
        else:
            self._run.append(("x", ""))

    def _tagged(self, struct: Struct, tagged: list[Field], variable: str) -> None:
        """A section that is empty nearly always ends the run with its count of 0."""
        emit = self._source.emit
        values = [f"{variable}.{_attribute(field)}" for field in tagged]
        differences = [self._differs(field, value) for field, value in zip(tagged, values, strict=True)]
        run = list(self._run)
        emit(f"if {' or '.join(differences)}:")
        self._source.depth += 1
        self._flush()
        tags, count = self._source.unique("tags"), self._source.unique("count")
        emit(f"{tags}: list[Part] = []")
        emit(f"{count} = 0")
        for field, value, difference in zip(tagged, values, differences, strict=True):
            emit(f"if {difference}:")
            self._source.depth += 1
            emit(f"{count} += 1")
            self._tagged_value(field, value, tags, f"{struct.name}.{field.name}")
            self._source.depth -= 1
        emit(f"{self._append}(BYTES[{count}])")
        part = self._source.unique("part")
        emit(f"for {part} in {tags}:")
        emit(f"    {self._append}({part})")
        self._source.depth -= 1
        emit("else:")
        self._source.depth += 1
        self._run = [*run, ("x", "")]
        self._flush()
        self._source.depth -= 1

    def _tagged_value(self, field: Field, value: str, tags: str, path: str) -> None:
        if field.type in FIXED and not field.is_array:
            code, size = FIXED[field.type]
            packer = self._source.bound("pack", ["B", "B", code])
            self._source.emit(f"{tags}.append({packer}({field.tag}, {size}, {value}))")
            return
        content = self._source.unique("content")
        self._source.emit(f"{content}: list[Part] = []")
        outer, self._append = self._append, f"{content}.append"
        self._field(field, value, path)
        self._flush()
        self._append = outer
        self._source.emit(f"{tags}.append(BYTES[{field.tag}] + uvarint(records_size(tuple({content}))))")
        self._source.emit(f"{tags}.extend({content})")

    def _differs(self, field: Field, value: str) -> str:
        if field.default == "null":
            return f"{value} is not None"
        if field.struct is not None and not field.is_array:
            self._defaults.add(field.struct.class_name)
            return f"{value} != DEFAULT_{field.struct.class_name}"
        if field.is_array:
            return f"{value} is None or len({value})"
        default = default_of(field)
        match default:
            case "True":
                return f"not {value}"
            case "False":
                return value
            case _:
                return f"{value} != {default}"

    # -- fields -----------------------------------------------------------------------------------------

    def _field(self, field: Field, value: str, path: str) -> None:
        nullable = self._version in field.nullable
        compact = self._flexible and not field.old_encoding
        if field.is_array:
            self._array(field, value, path, nullable, compact)
        elif field.type in FIXED:
            self._run.append((FIXED[field.type][0], value))
        elif field.struct is not None:
            self._nested(field, value, path, nullable)
        else:
            self._sized(field.type, value, path, nullable, compact)

    def _nested(self, field: Field, value: str, path: str, nullable: bool) -> None:
        assert field.struct is not None
        emit = self._source.emit
        local = self._source.unique(field.python_name)
        emit(f"{local} = {value}")
        emit(f"if {local} is None:")
        if not nullable:
            emit(f'    raise null_field("{path}")')
            self._struct(field.struct, local)
            return
        self._source.depth += 1
        # The run so far is written in both branches, so that neither needs to know about the other.
        run = list(self._run)
        self._run.append(("b", "-1"))
        self._flush()
        self._source.depth -= 1
        emit("else:")
        self._source.depth += 1
        self._run = [*run, ("b", "1")]
        self._struct(field.struct, local)
        self._flush()
        self._source.depth -= 1

    def _sized(self, kind: str, value: str, path: str, nullable: bool, compact: bool) -> None:
        if nullable or kind == "records":
            self._sized_or_null(kind, value, path, nullable, compact)
            return
        local = self._source.unique("text" if kind == "string" else kind)
        self._check_null(local, value, path)
        if kind == "string":
            self._source.emit(f"data = {local}.encode()")
            local = "data"
        self._length(kind, compact, local)

    def _sized_or_null(self, kind: str, value: str, path: str, nullable: bool, compact: bool) -> None:
        emit = self._source.emit
        local = self._source.unique("text" if kind == "string" else kind)
        emit(f"{local} = {value}")
        emit(f"if {local} is None:")
        self._source.depth += 1
        if not nullable:
            emit(f'raise null_field("{path}")')
        run = list(self._run)
        if nullable:
            self._run.append(("x", "") if compact else ("h" if kind == "string" else "i", "-1"))
            self._flush()
        self._source.depth -= 1
        emit("else:")
        self._source.depth += 1
        self._run = run
        if kind == "string":
            is_error = path.endswith("ErrorMessage")  # Kafka names all its error messages so
            emit(f"data = encode_error_message({local})" if is_error else f"data = {local}.encode()")
            local = "data"
        self._length(kind, compact, local)
        self._source.depth -= 1

    def _length(self, kind: str, compact: bool, content: str) -> None:
        """The length and then the content, which is never copied when it is records."""
        emit = self._source.emit
        if kind == "records":
            emit(f"n = records_size({content})")
            size = "n"
        else:
            size = f"len({content})"
        if not compact:
            self._run.append(("h" if kind == "string" else "i", size))
            self._flush()
        else:
            emit(f"n = {size} + 1")
            self._compact_length("string_size(n - 1)" if kind == "string" else "uvarint(n)")
        if kind == "records":
            emit(f"append_records({self._append}, {content})")
        else:
            emit(f"{self._append}({content})")

    def _array(self, field: Field, value: str, path: str, nullable: bool, compact: bool) -> None:
        emit = self._source.emit
        local = self._source.unique(field.python_name)
        if not nullable:
            self._check_null(local, value, path)
            self._filled(field, local, path, compact)
            return
        emit(f"{local} = {value}")
        emit(f"if {local} is None:")
        self._source.depth += 1
        run = list(self._run)
        self._run.append(("x", "") if compact else ("i", "-1"))
        self._flush()
        self._source.depth -= 1
        emit("else:")
        self._source.depth += 1
        self._run = run
        self._filled(field, local, path, compact)
        self._source.depth -= 1

    def _filled(self, field: Field, local: str, path: str, compact: bool) -> None:
        """An array that is there: its count and its elements."""
        emit = self._source.emit
        if compact:
            emit(f"n = len({local}) + 1")
            self._compact_length("uvarint(n)")
        else:
            self._run.append(("i", f"len({local})"))
            self._flush()
        if field.type in FIXED and field.type != "uuid":
            code = FIXED[field.type][0]
            emit(f'{self._append}(pack(f">{{len({local})}}{code}", *{local}))')
            return
        item = self._source.unique("item")
        emit(f"for {item} in {local}:")
        self._source.depth += 1
        if field.struct is not None:
            self._struct(field.struct, item)
        elif field.type == "uuid":
            self._run.append(("16s", item))
        else:
            self._sized(field.type, item, path, False, compact)
        if not self._run and field.struct is not None and not field.struct.fields:
            emit("pass")
        self._flush()
        self._source.depth -= 1

    def _check_null(self, local: str, value: str, path: str) -> None:
        self._source.emit(f"{local} = {value}")
        self._source.emit(f"if {local} is None:")
        self._source.emit(f'    raise null_field("{path}")')

    def _compact_length(self, long: str) -> None:
        """The varint `n`; its one byte ends the run, where one byte is enough."""
        if not self._run:
            self._source.emit(f"{self._append}(BYTES[n] if n < 128 else {long})")
            return
        run = self._packed()
        self._run.append(("B", "n"))
        self._source.emit(f"{self._append}({self._packed()} if n < 128 else {run} + {long})")
        self._run = []

    def _packed(self) -> str:
        """The expression of the run's bytes."""
        codes = [code for code, _ in self._run]
        values = ", ".join(expression for code, expression in self._run if code != "x")
        return 'b"\\0"' if codes == ["x"] else f"{self._source.bound('pack', codes)}({values})"

    def _flush(self) -> None:
        if self._run:
            self._source.emit(f"{self._append}({self._packed()})")
            self._run = []


def _attribute(field: Field) -> str:
    return field.python_name
