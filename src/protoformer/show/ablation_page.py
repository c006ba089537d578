"""The tables of ablations within a page that says more."""

from protoformer.errors import InputError

BEGIN, END = "<!-- tables: written by protoformer ablate -->", "<!-- end of tables -->"


def page_with_tables(page: str, tables: list[str], name: str) -> str:
    """A page's text with these sections between its markers, in the place of those before; name: of the page."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise InputError(f"{name} has no place for tables; write the lines {BEGIN} and {END} where they are to stand.")
    return "".join((before, BEGIN, "\n\n", *(f"{table.strip()}\n\n" for table in tables), END, after))
